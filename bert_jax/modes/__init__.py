"""One module a value of --mode; each has a function `run(flags)`."""
