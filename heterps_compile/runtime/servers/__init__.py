"""Parameter servers: embedding tables in shards that workers pull rows from and push gradients to."""
