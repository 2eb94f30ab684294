"""The tiny experiments: base model, demo, comparison of methods, gain audit and credit lab. See __main__.py."""
