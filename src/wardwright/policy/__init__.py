"""The policy plan: rules, how they are compiled, evaluated and arbitrated. Pure; nothing here has effects."""
