"""Settings of recipes: declaring, overriding, saving, loading, and user-defined components."""

from numerate.config.overrides import describe_settings as describe_settings
from numerate.config.overrides import expand_sweep as expand_sweep
from numerate.config.overrides import override as override
from numerate.config.saving import check_same_defaults as check_same_defaults
from numerate.config.saving import fingerprint as fingerprint
from numerate.config.saving import from_tree as from_tree
from numerate.config.saving import identity as identity
from numerate.config.saving import load_yaml as load_yaml
from numerate.config.saving import parse_yaml as parse_yaml
from numerate.config.saving import to_tree as to_tree
from numerate.config.saving import yaml_text as yaml_text
from numerate.config.settings import Spec as Spec
from numerate.config.settings import allowed_values as allowed_values
from numerate.config.settings import setting as setting
from numerate.config.span import Span as Span
from numerate.config.user_code import UserFile as UserFile
from numerate.config.user_code import refuse_while_loading as refuse_while_loading
from numerate.config.user_parts import add_packaged_part as add_packaged_part
from numerate.config.user_parts import add_packaged_parts as add_packaged_parts
from numerate.config.user_parts import approve_imported as approve_imported
from numerate.config.user_parts import load_user_files as load_user_files
from numerate.config.user_parts import load_user_object as load_user_object
from numerate.config.user_parts import load_user_parts as load_user_parts
from numerate.config.user_parts import user_files as user_files
from numerate.config.values import format_value as format_value
