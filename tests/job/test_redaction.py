"""Records of engine settings: no secret in them, and a change of one is still a change."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from orderproof.job.output_key import differences
from orderproof.job.redaction import (
    HIDDEN,
    KEY_FILE,
    args_without_secrets,
    hide_user_info,
    recorded_args,
    recorded_engine,
    same_settings,
)
from orderproof.job.spec import Job
from tests.support.trial_maker import make_job

PLAIN = "correct-horse"


def job_with(root: Path, **engine: Any) -> Job:
    return make_job(root, engine={"args": {"max_num_seqs": 8}, **engine})


@pytest.mark.parametrize(
    "engine",
    [
        {"env": {"MY_PASS": PLAIN}},
        {"env": {"AUTHORIZATION": f"Bearer {PLAIN}"}},
        {"env": {"MYPW": PLAIN, "DB_PWD": PLAIN}},
        {"env": {"SESSION_COOKIE": PLAIN, "aws_secret": PLAIN, "API_KEY": PLAIN, "CREDENTIALS": PLAIN}},
        {"env": {"DB": f"https://user:{PLAIN}@host/"}},
        {"env": {"DB": f"postgresql://user:{PLAIN}/with@signs@host/db"}},
        {"env": {"DB": f"redis://:{PLAIN}@host"}},
        {"env": {"GIT": f"https://{PLAIN}@host/repository"}},
        {"env": {"OPTIONS": f"--hf-token={PLAIN} --verbose"}},
        {"env": {"HEADERS": f'{{"Authorization": "Basic {PLAIN}"}}'}},
        {"args": {"max_num_seqs": 8, "hf_token": PLAIN}},
        {"args": {"max_num_seqs": 8, "kv_transfer_config": {"extra": [{"access_key": PLAIN}]}}},
        {"args": {"max_num_seqs": 8, "auth": {"user": PLAIN, "parts": [PLAIN]}}},
        {"args": {"max_num_seqs": 8, "download_dir": f"s3://me:{PLAIN}@bucket"}},
        {"command": ["docker", "run", "-e", f"MYPW={PLAIN}", "image", "python3"]},
        {"command": ["launch", "--api-key", PLAIN, "python3"]},
        {"command": ["launch", "-H", f"Authorization: Bearer {PLAIN}", "python3"]},
        {"command": ["launch", "-H", f"bearer {PLAIN}", "python3"]},
        {"command": ["launch", f"https://user:{PLAIN}@host/", "python3"]},
        {"command": ["sh", "-c", f"export SECRET={PLAIN}; exec python3"]},
    ],
)
def test_no_secret_is_recorded_and_its_change_is_seen(tmp_path: Path, engine: dict[str, Any]) -> None:
    before = recorded_engine(job_with(tmp_path, **engine))
    assert PLAIN not in json.dumps(before)
    assert recorded_engine(job_with(tmp_path, **engine)) == before
    changed = json.loads(json.dumps(engine).replace(PLAIN, "battery-staple"))
    assert differences(before, recorded_engine(job_with(tmp_path, **changed)))


def test_settings_that_are_no_secrets_stay_as_they_are(tmp_path: Path) -> None:
    args = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 4096,
        "long_prefill_token_threshold": 4.5,
        "tokenizer": "/models/x",
        "tokenizer_mode": "auto",
        "compilation_config": {"pass_config": {"fuse_norm_quant": True}},
        "enable_auth": True,
        "hf_token": None,
    }
    env = {"TOKENIZERS_PARALLELISM": "false", "LD_LIBRARY_PATH": "/opt/keys:/usr/lib", "URL": "https://host:80/a"}
    command = ("docker", "run", "-v", "/models:/models", "--gpus", "all", "image", "python3")
    recorded = recorded_engine(job_with(tmp_path, args=args, env=env, command=command))
    assert recorded == {"args": args, "env": env, "command": list(command)}
    assert not (tmp_path / KEY_FILE).exists(), "a key is made only where something is hidden"


def test_a_number_is_hidden_where_it_counts_no_tokens(tmp_path: Path) -> None:
    recorded = recorded_engine(job_with(tmp_path, args={"max_num_seqs": 8, "pin_password": 1234}, env={"PW": 1234}))
    assert "1234" not in json.dumps(recorded)


def test_the_key_is_its_owners_alone_and_digests_of_other_keys_tell_nothing(tmp_path: Path) -> None:
    job = job_with(tmp_path, args={"max_num_seqs": 8, "hf_token": PLAIN})
    before = recorded_args(job)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    shutil.rmtree(tmp_path / KEY_FILE.parent)
    after = recorded_args(job)
    assert before != after
    assert same_settings(before, after)
    assert differences({"args": before}, {"args": after}) == []
    assert differences({"args": before}, {"args": {**after, "max_num_seqs": 9}}) == ["args.max_num_seqs: 8 → 9"]


def test_without_a_place_for_a_key_values_are_hidden_without_digests(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE.parent).write_text("no folder")
    assert recorded_args(job_with(tmp_path, args={"max_num_seqs": 8, "hf_token": PLAIN}))["hf_token"] == "(hidden)"


def test_what_a_changed_secret_leaves_the_same_has_no_digest(tmp_path: Path) -> None:
    spec = job_with(tmp_path, args={"max_num_seqs": 8, "hf_token": PLAIN}).engine
    assert args_without_secrets(spec) == {"max_num_seqs": 8, "hf_token": "(hidden)"}


def test_the_digest_is_short_and_found_again(tmp_path: Path) -> None:
    hidden = recorded_engine(job_with(tmp_path, env={"TOKEN": PLAIN}))["env"]["TOKEN"]
    assert HIDDEN.fullmatch(hidden)


def test_a_message_keeps_the_urls_and_loses_who_asked() -> None:
    text = "fatal: 'https://me:pw@host/x.git' and ssh://git@host:22/y, not https://host/a"
    assert (
        hide_user_info(text) == "fatal: 'https://(hidden)@host/x.git' and ssh://(hidden)@host:22/y, not https://host/a"
    )
