"""The cost model: work, time, memory, and the problem a search solves."""
