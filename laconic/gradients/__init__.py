"""The gradient of a cohort: loop, vmap, stacked, fused layers, and the choice between them."""
