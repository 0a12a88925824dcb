"""Public datasets: official address, size and license of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from numerate.errors import UserError, did_you_mean


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address.

    - `name`: its path in the folder of the dataset. An archive is removed after it is unpacked.
    - `size` in bytes and `sha256` where they are pinned; None: those of the first download are recorded and shown.
    - `archive_format`: whether it is an archive; `members` are the files that must have come out of it, with their
      paths in the folder. Members of an archive lose their first folder.
    """

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None
    archive_format: Literal["tar", "zip", "gz"] | None = None
    members: tuple[str, ...] = ()

    @property
    def is_license(self) -> bool:
        """Whether it is the license text, which is optional."""
        return self.name == "LICENSE"

    @property
    def files(self) -> tuple[str, ...]:
        """The files in the folder after the download."""
        return self.members or (self.name,)


@dataclass(frozen=True)
class Dataset:
    """A dataset: its files, description, license and source."""

    name: str
    folder: str
    description: str
    license: str
    homepage: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int | None:
        """Download size in bytes; None if unknown."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


_GITHUB = "https://raw.githubusercontent.com"
_GSM8K = f"{_GITHUB}/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c"
_PAL = f"{_GITHUB}/reasoning-machines/pal/f81ca2a9777f002f98a6b4d0f10b61bd5c8feb02"
_SVAMP = f"{_GITHUB}/arkilpatel/SVAMP/689d7ccac74b9983a2ac7cc3b264f441b99e7c53"
_GSM_PLUS = f"{_GITHUB}/qtli/GSM-Plus/3474129ec12fcd3e8ac08cb037aca1928efca98c"
_MATHEMATICS = f"{_GITHUB}/google-deepmind/mathematics_dataset/427f45075f84b8b9774950196ad63867ca20ffb3"
_T5 = "https://huggingface.co/google-t5/t5-small"
_STORIES = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
_EXCERPTS = f"{_GITHUB}/czhou578/train-gpt2/b213c75be938fad8009e40e65a3765af2b5987c8/data/tinystories"
_GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"
_MISTRAL = f"{_GITHUB}/mistralai/mistral-common/87c65673473b2222de89388b9851662a068f1a45"
_JOKES = f"{_GITHUB}/orionw/rJokesData/master/data"

MATHEMATICS_FOLDERS = ("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate")

DATASETS: Mapping[str, Dataset] = {
    found.name: found
    for found in (
        Dataset(
            "mathematics",
            "mathematics_dataset",
            "DeepMind mathematics dataset v1.0, 56 modules of school mathematics",
            "Apache-2.0",
            "https://github.com/google-deepmind/mathematics_dataset",
            (
                RemoteFile(
                    "LICENSE",
                    f"{_MATHEMATICS}/LICENSE",
                    11_358,
                    "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
                ),
                RemoteFile(
                    "mathematics_dataset-v1.0.tar.gz",
                    "https://storage.googleapis.com/mathematics-dataset/mathematics_dataset-v1.0.tar.gz",
                    2_333_082_954,
                    "def638343403cb9ed60437d6b684c859dd23b72779f5cc5661b0a31e67c58576",
                    "tar",
                    MATHEMATICS_FOLDERS,
                ),
            ),
        ),
        Dataset(
            "gsm8k",
            "gsm8k",
            "GSM8K, 7,473 + 1,319 word problems with solutions",
            "MIT",
            "https://github.com/openai/grade-school-math",
            (
                RemoteFile(
                    "LICENSE",
                    f"{_GSM8K}/LICENSE",
                    1062,
                    "86bbb73e855821d7c401912fd4bf82e34313e6e3b6fd6f909f2b6cc9e209a53b",
                ),
                RemoteFile(
                    "train.jsonl",
                    f"{_GSM8K}/grade_school_math/data/train.jsonl",
                    4_166_206,
                    "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
                ),
                RemoteFile(
                    "test.jsonl",
                    f"{_GSM8K}/grade_school_math/data/test.jsonl",
                    749_738,
                    "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
                ),
            ),
        ),
        Dataset(
            "svamp",
            "svamp",
            "SVAMP, 1,000 word problems as a further test",
            "MIT",
            "https://github.com/arkilpatel/SVAMP",
            (
                RemoteFile(
                    "LICENSE",
                    f"{_SVAMP}/LICENSE",
                    1068,
                    "07ce3a34de7a865345634f9278bc26ddcacc2d0defd348c28e3f4603448b9ba4",
                ),
                RemoteFile(
                    "SVAMP.json",
                    f"{_SVAMP}/SVAMP.json",
                    339_970,
                    "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e",
                ),
            ),
        ),
        Dataset(
            "gsm_hard",
            "gsm_hard",
            "GSM-Hard, GSM8K's test with larger numbers",
            "Apache-2.0 (its repository; MIT on Hugging Face)",
            "https://github.com/reasoning-machines/pal",
            (
                RemoteFile(
                    "LICENSE",
                    f"{_PAL}/LICENSE",
                    11_357,
                    "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
                ),
                RemoteFile(
                    "gsmhardv2.jsonl",
                    f"{_PAL}/datasets/gsmhardv2.jsonl",
                    1_138_151,
                    "2032b0188a49ac0ec38cbe1e695e7d62d6dddc44bbb64f920728aca710e9ddef",
                ),
            ),
        ),
        Dataset(
            "gsm_plus",
            "gsm_plus",
            "GSM-Plus testmini, 300 problems of GSM8K's test changed in 8 ways",
            "CC BY-SA 4.0 (Li et al., ACL 2024; share alike)",
            "https://github.com/qtli/GSM-Plus",
            (
                RemoteFile(
                    "gsmplus_testmini.jsonl",
                    f"{_GSM_PLUS}/dataset/gsmplus_testmini.jsonl",
                    3_128_556,
                    "6653b4b941956da12ba0af2eae660800db13a901123553b163b77be2d20eb7d5",
                ),
            ),
        ),
        Dataset(
            "rjokes",
            "rjokes",
            "r/Jokes, 432,000 jokes with the score of their readers, many of them offensive",
            "Reddit's terms of service (https://www.reddit.com/wiki/api-terms)",
            "https://github.com/orionw/rJokesData",
            tuple(
                RemoteFile(f"{name}.tsv.gz", f"{_JOKES}/{name}.tsv.gz", archive_format="gz", members=(f"{name}.tsv",))
                for name in ("train", "dev", "test")
            ),
        ),
        Dataset(
            "multirc",
            "multirc",
            "MultiRC of SuperGLUE, questions on passages",
            "MultiRC's research license; see https://cogcomp.org/multirc and https://super.gluebenchmark.com",
            "https://super.gluebenchmark.com",
            (
                RemoteFile(
                    "MultiRC.zip",
                    "https://dl.fbaipublicfiles.com/glue/superglue/data/v2/MultiRC.zip",
                    archive_format="zip",
                    members=("train.jsonl", "val.jsonl", "test.jsonl"),
                ),
            ),
        ),
        Dataset(
            "tinystories",
            "tinystories",
            "TinyStories, 50 shards of stories by GPT-3.5 and GPT-4, as published language models were trained on",
            "CDLA-Sharing-1.0 (Eldan & Li, 2023, arXiv:2305.07759; share alike)",
            "https://huggingface.co/datasets/roneneldan/TinyStories",
            (
                RemoteFile(
                    "TinyStories_all_data.tar.gz",
                    f"{_STORIES}/TinyStories_all_data.tar.gz",
                    1_608_001_638,
                    "26cf7605aca15bc4ea6fa637256400d9d01317b28ed296172b2d1dd160cd7699",
                    "tar",
                    tuple(f"data{shard:02d}.json" for shard in range(50)),
                ),
            ),
        ),
        Dataset(
            "tinystories_texts",
            "tinystories_texts",
            "TinyStories by GPT-4 alone (V2) as two texts, to train on and for validation",
            "CDLA-Sharing-1.0 (Eldan & Li, 2023, arXiv:2305.07759; share alike)",
            "https://huggingface.co/datasets/roneneldan/TinyStories",
            (
                RemoteFile(
                    "TinyStoriesV2-GPT4-valid.txt",
                    f"{_STORIES}/TinyStoriesV2-GPT4-valid.txt",
                    22_502_601,
                    "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
                ),
                RemoteFile(
                    "TinyStoriesV2-GPT4-train.txt",
                    f"{_STORIES}/TinyStoriesV2-GPT4-train.txt",
                    2_227_753_162,
                    "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
                ),
            ),
        ),
        Dataset(
            "tinystories_excerpts",
            "tinystories",
            "TinyStories, 6,235 stories as ids of GPT-2, for tiny_stories_2048",
            "CDLA-Sharing-1.0 (Eldan & Li, 2023, arXiv:2305.07759; share alike)",
            "https://github.com/czhou578/train-gpt2",
            (
                RemoteFile(
                    "czhou578_train-gpt2/val.bin",
                    f"{_EXCERPTS}/val.bin",
                    1_244_318,
                    "e5b7891429408a3252fe2b68c7fa95b108a8714147e52fb3988492f9c4235da1",
                ),
                RemoteFile(
                    "czhou578_train-gpt2/test.bin",
                    f"{_EXCERPTS}/test.bin",
                    1_219_510,
                    "ec36f18cc6dddecdf21cee2f8e159e274a68bf136de8321a37a1afad347ce78b",
                ),
            ),
        ),
        Dataset(
            "gpt2_tokenizer",
            "tokenizers/gpt2",
            "GPT-2's vocabulary, 50,257 pieces, by which tinystories_excerpts are read",
            "MIT, modified (OpenAI)",
            "https://github.com/openai/gpt-2",
            (
                RemoteFile(
                    "vocab.json",
                    f"{_GPT2}/encoder.json",
                    1_042_301,
                    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                ),
                RemoteFile(
                    "merges.txt",
                    f"{_GPT2}/vocab.bpe",
                    456_318,
                    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
                ),
            ),
        ),
        Dataset(
            "mistral_tokenizer",
            "tokenizers/mistral",
            "Mistral's first tokenizer, 32,000 pieces, a token a digit, for tiny_stories",
            "Apache-2.0",
            "https://github.com/mistralai/mistral-common",
            (
                RemoteFile(
                    "tokenizer.model.v1",
                    f"{_MISTRAL}/src/mistral_common/data/tokenizer.model.v1",
                    493_443,
                    "dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
                ),
            ),
        ),
        Dataset(
            "t5_tokenizer",
            "tokenizers/t5-small",
            "T5's tokenizer, 32,100 pieces of words, for Subwords",
            "Apache-2.0",
            _T5,
            (
                RemoteFile(
                    "tokenizer.json",
                    f"{_T5}/resolve/main/tokenizer.json",
                    1_389_353,
                    "d2acde0d8d71dd30a711834b07781b9c89feaac33fd332f60507699282740066",
                ),
            ),
        ),
    )
}
"""Every dataset by its name."""


def find_dataset(name: str) -> Dataset:
    """The dataset of a name; `mathematics_arithmetic` is a part of `mathematics`. Raises `UserError` for any other."""
    normalized_name = name.replace("-", "_").lower()
    normalized_name = (
        "mathematics" if normalized_name in ("mathematics_arithmetic", "mathematics_dataset") else normalized_name
    )
    if normalized_name == "multiplication":
        raise UserError("multiplication: is generated, and needs no files")
    if normalized_name not in DATASETS:
        raise UserError(
            f"unknown dataset {name!r}; must be one of: {', '.join(DATASETS)}.{did_you_mean(name, DATASETS)}"
        )
    return DATASETS[normalized_name]
