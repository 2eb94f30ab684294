import torch

torch.set_num_threads(1)  # more only wait for each other on models this small
