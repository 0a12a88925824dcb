"""YAML without aliases, of which a few hundred bytes may stand for gigabytes: all YAML is read by `load_plain_yaml`."""

from typing import Any


def load_plain_yaml(text: Any, loader: Any = None) -> Any:
    """Plain data from YAML (text or bytes), by a loader of PyYAML, the fast one if None. Raises `yaml.YAMLError` for an
    alias."""
    import yaml

    loader = loader or getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if ("&" if isinstance(text, str) else b"&") in text:  # what an alias stands for is marked with it
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem="YAML aliases (*) are not supported", problem_mark=mark)
    return yaml.load(text, Loader=loader)
