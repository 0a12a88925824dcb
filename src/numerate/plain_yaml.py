"""YAML of plain data: without aliases, of which a few hundred bytes may stand for gigabytes, without names given twice,
and not nested without end. All YAML is read by `load_plain_yaml`."""

from functools import lru_cache
from typing import Any


@lru_cache
def plain_loader() -> Any:
    """A loader of PyYAML, the fast one where it is built, that refuses a name given twice in a mapping."""
    import yaml

    class PlainLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                name = self.construct_object(key) if isinstance(key, yaml.ScalarNode) else key  # 1 is not "1"
                if name in names:
                    raise yaml.MarkedYAMLError(problem=f"{name!r} is given twice", problem_mark=key.start_mark)
                names.add(name)
            return super().construct_mapping(node, deep)

    return PlainLoader


def load_plain_yaml(text: Any, loader: Any = None) -> Any:
    """Plain data from YAML (text or bytes), by a subclass of `plain_loader`, that one if None. Raises `yaml.YAMLError`
    for an alias, for a name given twice, and for data nested more than 100 deep, which may crash the loader."""
    import yaml

    loader, depth = loader or plain_loader(), 0
    # "&" marks what an alias stands for; the others begin what is nested, unless that is indented
    alias, indent, *nesting = (mark if isinstance(text, str) else mark.encode() for mark in ("&", " " * 100, *"[{-?"))
    if alias in text or indent in text or sum(text.count(mark) for mark in nesting) > 300:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.CollectionStartEvent | yaml.CollectionEndEvent):
                depth += 1 if isinstance(event, yaml.CollectionStartEvent) else -1
            if isinstance(event, yaml.AliasEvent) or depth > 100:
                problem = "YAML aliases (*) are not supported" if depth <= 100 else "it is nested too deeply"
                mark: Any = event.start_mark
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
    return yaml.load(text, Loader=loader)
