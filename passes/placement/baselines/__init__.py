"""The methods that others are compared with: fixed rules, greedy, genetic, Bayesian, brute force."""
