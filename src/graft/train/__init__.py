"""Training of EAGLE-3 heads: answers of the target itself, and the training-time test over them."""
