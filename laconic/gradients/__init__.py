"""The gradient of a cohort: loop, vmap, stacked, compiled kernels, and the choice between them."""
