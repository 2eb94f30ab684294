"""The tiny experiment: a base model, an audit of the gains, the demo and the comparison of methods. See __main__.py."""
