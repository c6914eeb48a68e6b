"""Options: each is declared once, and whatever is derived from the declarations agrees with them."""

from __future__ import annotations

import subprocess
import sys
import traceback
import typing
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import click
import msgspec
import pytest

import bansong as bs
from bansong.base.display import AskedProgress
from bansong.base.messages import PYTHON
from bansong.base.option import OptionSpec, specs_of
from bansong.base.options import ServiceKeywords
from bansong.cli.app import app
from bansong.cli.options import COMMAND_LINE
from bansong.errors import UsageError
from bansong.history.labels import LabelStore
from bansong.jobs.job_file import InputPart, JobFile, JobFileAudience
from bansong.labels.options import LabelKeywords, LabelOptions
from bansong.reference.reviews import Choices
from bansong.run.enrich import BatchKeywords, EnrichKeywords, FrameKeywords, VerifyKeywords
from bansong.run.options import LocalOptions, RunOptions

KINDS = (bs.ReadOptions, bs.WriteOptions, bs.ServiceOptions, LocalOptions, RunOptions)
"""Whose fields are keywords of `enrich`."""
SPECS = [spec for kind in (*KINDS, bs.StatusOptions) for spec in specs_of(kind)]
JOB = {field.name: field.type for field in msgspec.structs.fields(JobFile)} | {"inputs": InputPart}


def types_of(kind: type) -> dict[str, Any]:
    """The types of a class's fields; names that only type checkers import are found where they are defined."""
    names = {
        **{name: getattr(bs, name) for name in ("ApiKey", "Registry", "Gazetteer", "Scorecard")},
        "AskedProgress": AskedProgress,
        "Choices": Choices,
        "LabelStore": LabelStore,
    }
    return typing.get_type_hints(kind, localns=names)


@pytest.mark.parametrize(
    ("keywords", "kinds"),
    [
        (ServiceKeywords, (bs.ServiceOptions,)),
        (EnrichKeywords, KINDS),
        (LabelKeywords, (LabelOptions, bs.ServiceOptions)),
    ],
)
def test_keywords_for_type_checkers_are_the_fields(keywords: type, kinds: tuple[type, ...]) -> None:
    """What must be written twice has the same names and types."""
    fields = {name: type for kind in kinds for name, type in types_of(kind).items()}
    assert types_of(keywords) == fields
    assert sum(len(specs_of(kind)) for kind in kinds) == len(fields)


@pytest.mark.parametrize("keywords", [BatchKeywords, VerifyKeywords, FrameKeywords])
def test_keywords_of_other_functions_are_some_of_those_of_enrich(keywords: type) -> None:
    assert types_of(keywords).items() <= types_of(EnrichKeywords).items()


def test_names_of_options_in_messages_are_unique() -> None:
    """A message that names a parameter names one option."""
    named = Counter(spec.parameter for spec in SPECS if spec.flag or spec.off or spec.key)
    assert [name for name, count in named.items() if count > 1] == []


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.flag or spec.off], ids=lambda spec: spec.parameter)
def test_a_declared_flag_is_an_option_of_enrich(spec: OptionSpec) -> None:
    """It gives the parameter, has the help that was declared, and is what messages call it."""
    given = {name: one for one in app.commands["enrich"].params for name in (*one.opts, *one.secondary_opts)}
    for flag, help in ((spec.flag, spec.help), (spec.off, spec.off_help or spec.help)):
        if flag:
            option = given[flag.partition("/")[0]]
            assert isinstance(option, click.Option)
            assert option.help == help
    if spec.flag:
        assert COMMAND_LINE.option(spec.parameter) == spec.flag.partition("/")[0]
    if spec.off:
        assert COMMAND_LINE.option(spec.parameter, False) == spec.off


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.key], ids=lambda spec: f"{spec.table}.{spec.key}")
def test_a_declared_field_is_one_of_the_job_file(spec: OptionSpec) -> None:
    table, key = spec.table, spec.key
    assert key in JOB[table].__struct_fields__
    assert JobFileAudience(PYTHON).option(spec.parameter) == f"`[{table}] {key}`"


@pytest.mark.parametrize("kind", [*KINDS, bs.StatusOptions])
def test_defaults_are_values_that_the_rules_allow(kind: type) -> None:
    """Whatever is left out."""
    assert kind() == kind()
    assert {spec.name: getattr(kind(), spec.name) for spec in specs_of(kind)} == {
        spec.name: spec.default for spec in specs_of(kind)
    }


def test_what_declares_options_loads_nothing_heavy() -> None:
    """The command line loads it for its help."""
    code = "import sys, bansong.base.options; print({'polars', 'click', 'msgspec'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


CALLS: dict[str, Callable[..., Any]] = {
    "enrich": bs.enrich,
    "plan": bs.plan,
    "aenrich": lambda *given, **keywords: anyio.run(lambda: bs.aenrich(*given, **keywords)),
}


@pytest.mark.parametrize("function", CALLS)
def test_a_misspelt_keyword_names_the_parameters_of_the_function(function: str) -> None:
    with pytest.raises(UsageError) as caught:
        CALLS[function]("a.csv", bugdet=3)
    assert caught.value.code == "options.parameter_unknown"
    assert caught.value.fields["function"] == function
    assert "budget=" in caught.value.fields["meant"]
    listed = caught.value.fields["listed"].split(", ")
    assert {"read", "write", "cancel", "sheet", "budget"} < {*listed}
    assert ("dry_run" in listed) is (function != "plan")


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (bs.ServiceOptions, {"api_key": "open-secret", "budget": -1}),
        (bs.ServiceOptions, {"api_key": "open-secret\n"}),
        (bs.StatusOptions, {"key": "open-secret"}),
        (bs.StatusOptions, {"key": "open-secret", "rate": 0}),
    ],
)
def test_a_key_is_in_no_frame_of_a_constructor(kind: type, wrong: dict[str, Any]) -> None:
    """Tracebacks may be shown with the variables of their frames."""
    with pytest.raises(UsageError) as caught:
        kind(**wrong)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    shown = [f"{name}={value!r}" for frame in frames for name, value in frame.f_locals.items() if name != "self"]
    assert shown
    assert [one for one in shown if "open-secret" in one] == []
