"""Options: each is declared once, and whatever is derived from the declarations agrees with them."""

from __future__ import annotations

import inspect
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
from bansong.base.option import specs_of
from bansong.base.options import ReadKeywords, ServiceKeywords
from bansong.cli.app import app
from bansong.cli.options import COMMAND_LINE
from bansong.distributed import verify_batches
from bansong.errors import UsageError
from bansong.history.labels import LabelStore
from bansong.jobs.job_file import InputPart, JobFile, JobFileAudience
from bansong.labels.options import LabelKeywords, LabelOptions
from bansong.reference.reviews import Choices
from bansong.run.enrich import BatchKeywords, EnrichKeywords, FrameKeywords, VerifyKeywords
from bansong.run.options import LocalOptions, RunOptions
from bansong.watch.api import ServiceTerms

KINDS = (bs.ReadOptions, bs.WriteOptions, bs.ServiceOptions, LocalOptions, RunOptions)
"""Whose fields are keywords of `enrich`."""
SPECS = [spec for kind in (*KINDS, bs.StatusOptions) for spec in specs_of(kind)]
JOB = {field.name: field.type for field in msgspec.structs.fields(JobFile)} | {"inputs": InputPart}


def types_of(kind: type) -> dict[str, Any]:
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
    fields = {name: type for kind in kinds for name, type in types_of(kind).items()}
    assert types_of(keywords) == fields
    assert sum(len(specs_of(kind)) for kind in kinds) == len(fields)


@pytest.mark.parametrize("keywords", [BatchKeywords, VerifyKeywords, FrameKeywords])
def test_keywords_of_other_functions_are_some_of_those_of_enrich(keywords: type) -> None:
    assert types_of(keywords).items() <= types_of(EnrichKeywords).items()


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
    with pytest.raises(UsageError) as caught:
        kind(**wrong)
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)][1:]
    shown = [f"{name}={value!r}" for frame in frames for name, value in frame.f_locals.items() if name != "self"]
    assert shown
    assert [one for one in shown if "open-secret" in one] == []


def test_a_declared_flag_is_an_option_of_enrich_and_what_messages_call_it() -> None:
    named = Counter(spec.parameter for spec in SPECS if spec.flag or spec.off or spec.key)
    assert max(named.values()) == 1
    given = {name: one for one in app.commands["enrich"].params for name in (*one.opts, *one.secondary_opts)}
    for spec in SPECS:
        for flag, help in ((spec.flag, spec.help), (spec.off, spec.off_help or spec.help)):
            if flag:
                option = given[flag.partition("/")[0]]
                assert isinstance(option, click.Option)
                assert option.help == help
        if spec.flag:
            assert COMMAND_LINE.option(spec.parameter) == spec.flag.partition("/")[0]
        if spec.off:
            assert COMMAND_LINE.option(spec.parameter, False) == spec.off


def test_a_declared_field_is_one_of_the_job_file_and_what_messages_call_it() -> None:
    for spec in (spec for spec in SPECS if spec.key):
        assert spec.key in JOB[spec.table].__struct_fields__
        assert JobFileAudience(PYTHON).option(spec.parameter) == f"`[{spec.table}] {spec.key}`"


@pytest.mark.parametrize("kind", [*KINDS, bs.StatusOptions])
def test_defaults_are_values_that_the_rules_allow(kind: type) -> None:
    specs = specs_of(kind)
    assert {spec.name: getattr(kind(), spec.name) for spec in specs} == {spec.name: spec.default for spec in specs}


def test_a_misspelt_keyword_names_the_parameters_of_the_function() -> None:
    calls: dict[str, Callable[..., Any]] = {
        "enrich": bs.enrich,
        "plan": bs.plan,
        "aenrich": lambda *given, **keywords: anyio.run(lambda: bs.aenrich(*given, **keywords)),
    }
    for function, call in calls.items():
        with pytest.raises(UsageError) as caught:
            call("a.csv", bugdet=3)
        fields = caught.value.fields
        assert (caught.value.code, fields["function"]) == ("options.parameter_unknown", function)
        assert "budget=" in fields["remedy"]
        with pytest.raises(UsageError) as caught:
            call("a.csv", qqq=3)
        listed = {*caught.value.fields["remedy"].removeprefix("it takes ").split(", ")}
        assert listed > {"input", "read", "write", "cancel", "sheet", "budget"}
        assert ("dry_run" in listed) is (function != "plan")


def test_a_misspelt_positional_parameter_is_recognised() -> None:
    with pytest.raises(UsageError) as caught:
        bs.verify("124-81-00998", adress="서울 중구 세종대로 110")  # type: ignore[call-arg]
    assert "`address=`" in caught.value.fields["remedy"]


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        *((function, EnrichKeywords) for function in (bs.enrich, bs.plan, bs.aenrich)),
        (bs.verify, VerifyKeywords),
        (bs.verify_frame, FrameKeywords),
        (bs.label, LabelKeywords),
        (bs.letters, ReadKeywords),
        (verify_batches, BatchKeywords),
        *((getattr(bs.watch, name), ServiceTerms) for name in ("sync", "add", "remove", "entries", "history_frame")),
    ],
)
def test_help_shows_each_keyword_with_its_default(function: Callable[..., Any], keywords: Any) -> None:
    """For ``help()``, a notebook's ``?`` and editors; what the code takes is in the TypedDict."""
    shown = inspect.signature(function).parameters
    assert all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in shown.values())
    declared = {spec.name: spec for kind in reversed((*KINDS, LabelOptions)) for spec in specs_of(kind)}
    for name, hint in keywords.__annotations__.items():
        assert shown[name].default == declared[name].default
        assert shown[name].annotation == hint.__forward_arg__
