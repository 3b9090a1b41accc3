"""Functions that Numba compiles, kept between processes; words of memory by address."""
