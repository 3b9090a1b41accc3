"""stretto in PyTorch: a backend of torch.distributed, operators and fused layers.

import stretto.torch
torch.distributed.init_process_group("stretto")
"""
