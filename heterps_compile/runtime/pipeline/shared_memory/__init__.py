"""How ranks of one machine talk: messages in memory that both map."""
