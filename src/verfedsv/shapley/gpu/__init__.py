"""The closed form on a GPU. Modules here import numba.cuda, so they are imported when asked for."""
