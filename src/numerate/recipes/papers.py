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
    "fire": """@inproceedings{li2024functional,
  title     = {Functional Interpolation for Relative Positions Improves Long Context Transformers},
  author    = {Li, Shanda and You, Chong and Guruganesh, Guru and Ainslie, Joshua and Ontanon, Santiago and
               Zaheer, Manzil and Sanghai, Sumit and Yang, Yiming and Kumar, Sanjiv and Bhojanapalli, Srinadh},
  booktitle = {International Conference on Learning Representations},
  year      = {2024},
  url       = {https://arxiv.org/abs/2310.04418}
}""",
    "nope": """@inproceedings{kazemnejad2023impact,
  title     = {The Impact of Positional Encoding on Length Generalization in Transformers},
  author    = {Kazemnejad, Amirhossein and Padhi, Inkit and Natesan Ramamurthy, Karthikeyan and Das, Payel and
               Reddy, Siva},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {36},
  year      = {2023},
  url       = {https://arxiv.org/abs/2305.19466}
}""",
    "coupling": """@inproceedings{cho2024position,
  title     = {Position Coupling: Improving Length Generalization of Arithmetic Transformers Using Task Structure},
  author    = {Cho, Hanseul and Cha, Jaeyoung and Awasthi, Pranjal and Bhojanapalli, Srinadh and Gupta, Anupam and
               Yun, Chulhee},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {37},
  year      = {2024},
  url       = {https://arxiv.org/abs/2405.20671}
}""",
    "randomised": """@inproceedings{ruoss2023randomized,
  title     = {Randomized Positional Encodings Boost Length Generalization of Transformers},
  author    = {Ruoss, Anian and Del{\\'e}tang, Gr{\\'e}goire and Genewein, Tim and Grau-Moya, Jordi and
               Csord{\\'a}s, R{\\'o}bert and Bennani, Mehdi and Legg, Shane and Veness, Joel},
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics},
  year      = {2023},
  url       = {https://arxiv.org/abs/2305.16843}
}""",
    "counting": """@inproceedings{chang2025language,
  title     = {Language Models Need Inductive Biases to Count Inductively},
  author    = {Chang, Yingshan and Bisk, Yonatan},
  booktitle = {International Conference on Learning Representations},
  year      = {2025},
  note      = {First version 2024},
  url       = {https://arxiv.org/abs/2405.20131}
}""",
    "alibi": """@inproceedings{press2022train,
  title     = {Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation},
  author    = {Press, Ofir and Smith, Noah A. and Lewis, Mike},
  booktitle = {International Conference on Learning Representations},
  year      = {2022},
  url       = {https://arxiv.org/abs/2108.12409}
}""",
    "min_gru": """@article{feng2024were,
  title   = {Were RNNs All We Needed?},
  author  = {Feng, Leo and Tung, Frederick and Ahmed, Mohamed Osama and Bengio, Yoshua and Hajimirsadeghi, Hossein},
  journal = {arXiv preprint arXiv:2410.01201},
  year    = {2024},
  url     = {https://arxiv.org/abs/2410.01201}
}""",
    "lru": """@inproceedings{orvieto2023resurrecting,
  title     = {Resurrecting Recurrent Neural Networks for Long Sequences},
  author    = {Orvieto, Antonio and Smith, Samuel L. and Gu, Albert and Fernando, Anushan and Gulcehre, Caglar and
               Pascanu, Razvan and De, Soham},
  booktitle = {Proceedings of the 40th International Conference on Machine Learning},
  year      = {2023},
  url       = {https://arxiv.org/abs/2303.06349}
}""",
    "delta_product": """@inproceedings{siems2025deltaproduct,
  title     = {DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products},
  author    = {Siems, Julien and Carstensen, Timur and Zela, Arber and Hutter, Frank and Pontil, Massimiliano and
               Grazzi, Riccardo},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2025},
  url       = {https://arxiv.org/abs/2502.10297}
}""",
}
