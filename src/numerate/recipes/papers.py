"""The papers of the recipes, as BibTeX: printed by `numerate show` and in the report of a run."""

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
  booktitle = {Proceedings of the 61st Annual Meeting of the Association for Computational Linguistics (Volume 2: Short
               Papers)},
  pages     = {1889--1903},
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
    "number_loss": """@inproceedings{zausinger2025regress,
  title     = {Regress, Don't Guess: A Regression-like Loss on Number Tokens for Language Models},
  author    = {Zausinger, Jonas and Pennig, Lars and Kozina, Anamarija and Sdahl, Sean and Sikora, Julian and
               Dendorfer, Adrian and Kuznetsov, Timofey and Hagog, Mohamad and Wiedemann, Nina and Chlodny, Kacper and
               Limbach, Vincent and Ketteler, Anna and Prein, Thorben and Singh, Vishwa Mohan and
               Danziger, Michael Morris and Born, Jannis},
  booktitle = {Proceedings of the 42nd International Conference on Machine Learning},
  volume    = {267},
  pages     = {73995--74017},
  year      = {2025},
  note      = {First version 2024},
  url       = {https://arxiv.org/abs/2411.02083}
}""",
    "regression_transformer": """@article{born2023regression,
  title   = {Regression Transformer enables concurrent sequence regression and generation for molecular language
             modelling},
  author  = {Born, Jannis and Manica, Matteo},
  journal = {Nature Machine Intelligence},
  volume  = {5},
  number  = {4},
  pages   = {432--444},
  year    = {2023},
  url     = {https://arxiv.org/abs/2202.01338}
}""",
    "xval": """@article{golkar2023xval,
  title   = {xVal: A Continuous Number Encoding for Large Language Models},
  author  = {Golkar, Siavash and Pettee, Mariel and Eickenberg, Michael and Bietti, Alberto and Cranmer, Miles and
             Krawezik, Geraud and Lanusse, Francois and McCabe, Michael and Ohana, Ruben and Parker, Liam and
             R{\\'e}galdo-Saint Blancard, Bruno and Tesileanu, Tiberiu and Cho, Kyunghyun and Ho, Shirley},
  journal = {arXiv preprint arXiv:2310.02989},
  year    = {2023},
  url     = {https://arxiv.org/abs/2310.02989}
}""",
    "dual_attention": """@inproceedings{altabaa2025disentangling,
  title     = {Disentangling and Integrating Relational and Sensory Information in Transformer Architectures},
  author    = {Altabaa, Awni and Lafferty, John},
  booktitle = {Proceedings of the 42nd International Conference on Machine Learning},
  year      = {2025},
  note      = {First version 2024},
  url       = {https://arxiv.org/abs/2405.16727}
}""",
    "tiny_stories": """@article{eldan2023tinystories,
  title   = {TinyStories: How Small Can Language Models Be and Still Speak Coherent English?},
  author  = {Eldan, Ronen and Li, Yuanzhi},
  journal = {arXiv preprint arXiv:2305.07759},
  year    = {2023},
  url     = {https://arxiv.org/abs/2305.07759}
}""",
}
