"""wardwright: one policy plan for the tool calls that pass on the wire."""
