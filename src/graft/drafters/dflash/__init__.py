"""DFlash: a block of masked tokens after the root, denoised in one pass from target features."""
