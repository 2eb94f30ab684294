"""minvenus: DR-Venus, a deep-research agent trained by SFT and IGPO, in pure PyTorch. Importing it
starts no work."""

__version__ = "0.1.0"
