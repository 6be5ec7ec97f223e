"""How replicas of a stage agree: rules by name, what each moves and takes, and which stage has which."""
