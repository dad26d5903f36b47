"""What dibs costs: scenarios that take a storage, beside the bare steps of the same machine and minute."""
