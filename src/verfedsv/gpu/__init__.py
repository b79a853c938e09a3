"""What kernels on a GPU share. Modules other than `devices` import numba.cuda, so they are imported when asked for."""
