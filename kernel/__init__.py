"""One kernel: what it is, how it is built, looked at, launched, and run without a GPU."""
