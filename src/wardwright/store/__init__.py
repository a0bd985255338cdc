"""Where ledgers, registers, receipts and sealed rows are kept, behind one protocol."""
