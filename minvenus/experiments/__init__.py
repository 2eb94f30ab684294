"""The tiny experiments: base model, demo, comparison, audit, calculator and lab: __main__.py."""
