"""Keys in the environment, in headers, in addresses, and in what a provider says in its errors:
none of them reaches a trace, an output, the view or the REPL, in runs, resumed runs and forks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import answering, block
from tests.kernel.kernel import Kernel
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

pytestmark = [pytest.mark.kernel, pytest.mark.xdist_group("kernel")]

SECRETS = {
    "key": "sk-canary-key-0123456789",
    "header": "canary-header-0123456789",
    "query": "canary-query-0123456789",
    "password": "canary-password-0123456789",
    "body": "canary-body-0123456789",
    "token": "canary-token-0123456789",
}
CODE = """
import os
print(dict(os.environ))
found = llm_query_batched(["good", "bad one", "bad two"])
print(found)
"""
LOOKED_AT = """
from rlm_notebook.view.rows import fields
for run in (first, second, third):
    print(run.trace.to_text(), run.trace.to_html(), run.trace.to_frame().to_string())
    for span in run.trace.find():
        print(repr(span), span.attrs, [(field.name, field.text) for field in fields(span)])
    print(repr(run), run.warnings, run.trace.header)
"""


def refusal(status: int) -> Rule:
    """A provider that says everything it was told."""
    told = " ".join(f"{name}={value}" for name, value in SECRETS.items())
    body = {"error": {"message": f"wrong: {told}", "param": list(SECRETS.values()), "code": "x"}}
    return Rule(status=status, body=json.dumps(body), match="bad")


def provider(address: str) -> str:
    """Settings with a secret wherever one can stand."""
    host = address.removeprefix("http://")
    where = f"http://someone:{SECRETS['password']}@{host}?api-key={SECRETS['query']}"
    settings = {
        "base_url": where,
        "headers": {"x-key": SECRETS["header"], "x-token": "$MY_TOKEN"},
        "extra_body": {"secret": SECRETS["body"]},
    }
    return json.dumps({"mine": settings})


def test_no_secret_is_shown_or_written(tmp_path: Path, openai_server: OpenAIServer) -> None:
    heard: list[Any] = []
    openai_server.script(
        refusal(400),
        Rule(content=block(CODE), match="Begin by looking"),
        Rule(status=401, body=refusal(401).body, model="root", match="turns are left"),
        Rule(),
    )
    environment = {
        "MINE_API_KEY": SECRETS["key"],
        "OPENAI_API_KEY": SECRETS["key"],
        "MY_TOKEN": SECRETS["token"],
        "RLM_PROVIDERS": provider(openai_server.url),
    }
    with Kernel(tmp_path, **environment) as kernel:

        def run(code: str) -> Any:
            return kernel.run(code, during=heard.append)

        run("%load_ext rlm_notebook\nfrom rlm_notebook import Trace\ncorpus = 'some text'")
        failed = run("%%rlm --context corpus --model mine/root --out first\nwhat?")
        assert "wrong: key=[key] header=[key]" in failed.error
        openai_server.script(
            refusal(400), Rule(content=answering("found[0]"), match="turns are left"), Rule()
        )
        assert run("%rlm_resume first --out second").status == "ok"
        assert run("%rlm_fork first --turn 2 --out third").status == "ok"
        assert run("second.answer, third.answer").value == "('answer to: good', 'answer to: good')"
        run(LOOKED_AT)
        run("%rlm_traces")
        run("%rlm_compare second third")
        run("%rlm_replay second --check")
        run("%rlm_config")
    log = openai_server.log()
    assert any(SECRETS["header"] in entry.headers.values() for entry in log), "they were sent"
    assert any(SECRETS["token"] in entry.headers.values() for entry in log)
    shown = [m for m in heard if m["msg_type"] != "execute_input"]
    assert any(m["msg_type"] == "comm_msg" for m in shown)
    texts = {f"message {n}": json.dumps(m, default=str) for n, m in enumerate(shown)}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in files if path.name.endswith(".rlm.jsonl")]) == 2
    assert [path for path in files if path.parent.name == "contexts"]
    texts |= {str(path): path.read_text(encoding="utf-8", errors="replace") for path in files}
    for where, text in texts.items():
        for name, secret in SECRETS.items():
            assert secret not in text, f"{name} in {where}: {around(text, secret)}"
    assert any("wrong: key=[key]" in text for text in texts.values()), "the errors were shown"


def around(text: str, secret: str) -> str:
    at = text.index(secret)
    return text[max(0, at - 200) : at + 60]
