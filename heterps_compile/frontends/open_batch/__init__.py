"""The batch of a model that fixes it is opened, where every node is proven to treat samples by themselves."""
