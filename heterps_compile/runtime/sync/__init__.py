"""How the replicas of a stage agree: the rules of synchronisation at run time."""
