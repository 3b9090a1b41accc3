"""From a plan to machine code: a kernel, its parameters, the compiler, its cache."""
