"""Tests the settings: their names, defaults and words, and the warnings about misspelt names."""
import os
import subprocess
import sys

import pytest
from verbena import settings
from verbena.ops.fused import CODECS
from verbena.setting_table import OTHERS, SETTINGS

QUANTIZATION = "VERBENA_QUICK_REDUCE_QUANTIZATION"


def test_the_first_name_that_is_set_counts():
    assert settings.read(QUANTIZATION, {}) == "NONE"
    alias = {"AITER_QUICK_REDUCE_QUANTIZATION": " FP8 "}
    assert settings.read(QUANTIZATION, alias) == "FP8"
    assert settings.read(QUANTIZATION, {**alias, QUANTIZATION: " "}) == "FP8", "an empty value counts as not set"
    assert settings.read(QUANTIZATION, {**alias, QUANTIZATION: "INT4"}) == "INT4"


def test_flags_and_choices():
    for word, value in (("1", True), ("yes", True), ("ON", True), ("0", False), ("2", False), ("", False)):
        assert settings.read_flag("USE_VERBENA_COLLECTIVES", {"USE_VERBENA_COLLECTIVES": word}) == value, word
    assert settings.read_choice(QUANTIZATION, {QUANTIZATION: "fp8_int8"}) == "FP8_INT8"
    with pytest.warns(UserWarning, match="INT3 is not one of NONE, FP, FP8"):
        assert settings.read_choice(QUANTIZATION, {QUANTIZATION: "INT3"}) == "NONE"


def test_every_codec_is_a_word():
    assert set(SETTINGS[QUANTIZATION][2]) == {"NONE", "FP", *(name.upper() for name in CODECS)}


def test_unknown_names():
    assert {"VERBENA_HCA", "SOFTVERBS_DEVICES"} <= set(OTHERS) and not set(OTHERS) & set(SETTINGS)
    wrong = {"VERBENA_QUICK_REDUCE_QUANTISATION": QUANTIZATION, "USE_VERBENA_COLLECTIVE": "USE_VERBENA_COLLECTIVES",
             "SOFTVERBS_DEVICE": "SOFTVERBS_DEVICES", "LIBVERBENA_PAHT": "LIBVERBENA_PATH", "VERBENA_ENCRYPTIN": "VERBENA_ENCRYPTION"}
    assert settings.find_unknown_names([*wrong, *OTHERS, *SETTINGS, "PATH", "MY_VERBENA_NAME"]) == wrong


@pytest.mark.parametrize("call", ["verbena.native.load_library()", "verbena.integrations.engine.switch_on_if_asked('engine', None)"])
def test_a_typing_error_is_one_warning(call):
    program = f"import verbena.native, verbena.integrations.engine\nfor _ in range(2):\n    try: {call}\n    except Exception: pass"
    environment = {**os.environ, "LIBVERBENA_PATH": "/nowhere", "USE_VERBENA_COLLECTIVE": "1"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert told.stderr.count("verbena: USE_VERBENA_COLLECTIVE is unknown and is ignored; did you mean USE_VERBENA_COLLECTIVES?") == 1, told.stderr
