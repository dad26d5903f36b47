"""What must happen even if nobody looks: one duty a file. Any number of processes may do any of them."""
