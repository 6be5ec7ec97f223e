"""A committed plan against the model and the pool of today: does it still fit, is there a better one, why is it so."""
