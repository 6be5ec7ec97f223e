"""The intermediate representation: graphs, layers, partitions, and their laws."""
