"""The papers behind the recipes, as BibTeX: printed by `numerate show` and in the report of a run."""

PAPERS = {
    "abacus": """@inproceedings{mcleish2024transformers,
  title     = {Transformers Can Do Arithmetic with the Right Embeddings},
  author    = {McLeish, Sean and Bansal, Arpit and Stein, Alex and Jain, Neel and Kirchenbauer, John and
               Bartoldson, Brian R. and Kailkhura, Bhavya and Bhatele, Abhinav and Geiping, Jonas and
               Schwarzschild, Avi and Goldstein, Tom},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {37},
  year      = {2024},
  url       = {https://arxiv.org/abs/2405.17399}
}""",
    "rotary": """@article{su2024roformer,
  title   = {RoFormer: Enhanced Transformer with Rotary Position Embedding},
  author  = {Su, Jianlin and Ahmed, Murtadha and Lu, Yu and Pan, Shengfeng and Bo, Wen and Liu, Yunfeng},
  journal = {Neurocomputing},
  volume  = {568},
  year    = {2024},
  url     = {https://arxiv.org/abs/2104.09864}
}""",
}
