"""Every case runs end to end, against a real server on loopback."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest

from rlm_notebook.errors import LMError, ModelError
from rlm_notebook.lm.openai import OpenAILM
from rlm_notebook.lm.protocol import LM, Message, Request, Response, Usage
from rlm_notebook.lm.transport import is_loopback, proxy_of
from tests.servers.handle import OpenAIServer
from tests.servers.openai_server import Rule

KEY = "sk-secret-0123456789abcdefghij"


def prompt(text: str) -> Request:
    return Request((Message("user", text),))


async def ask(lm: LM, text: str = "hello") -> Response:
    try:
        return await lm.complete(prompt(text))
    finally:
        await lm.close()


async def failure(lm: LM, text: str = "hello") -> LMError:
    with pytest.raises(LMError) as caught:
        await ask(lm, text)
    message = str(caught.value)
    assert "\n" not in message
    assert KEY not in message
    assert caught.value.__context__ is None or KEY not in repr(caught.value.__context__)
    return caught.value


# What is sent


async def test_a_call_sends_model_messages_and_key_and_reads_the_answer(
    openai_server: OpenAIServer,
) -> None:
    response = await ask(OpenAILM("some/model", base_url=openai_server.url, api_key=KEY))
    assert response == Response("answer to: hello", Usage(7, 3), "stop", "some/model")
    (entry,) = openai_server.log()
    assert (entry.model, entry.prompt) == ("some/model", "hello")
    assert entry.authorization == f"Bearer {KEY}"


async def test_the_address_comes_from_the_environment_unless_given(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{openai_server.url}/")
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    assert (await ask(OpenAILM("m"))).text == "answer to: hello"
    assert openai_server.log()[0].authorization == f"Bearer {KEY}"
    assert OpenAILM("m", base_url="http://localhost:9/v1").base_url == "http://localhost:9/v1"


async def test_without_a_key_a_server_of_your_own_gets_no_authorization(
    openai_server: OpenAIServer,
) -> None:
    await ask(OpenAILM("m", base_url=openai_server.url))
    assert openai_server.log()[0].authorization is None


async def test_user_and_password_in_the_address_are_sent_and_never_shown(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = openai_server.url.replace("://", "://me:pass-word@")
    lm = OpenAILM("m", base_url=url)
    await ask(lm)
    assert openai_server.log()[0].authorization == "Basic bWU6cGFzcy13b3Jk"
    assert "pass-word" not in repr(lm) + lm.base_url + caplog.text


@pytest.mark.parametrize("suffix", ["/chat/completions", "/chat/completions/?api-version=2"])
async def test_an_address_that_names_the_whole_path_works_too(
    openai_server: OpenAIServer, suffix: str
) -> None:
    lm = OpenAILM("m", base_url=openai_server.url + suffix)
    assert (await ask(lm)).text == "answer to: hello"
    assert lm.base_url == openai_server.url


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\x00b", "a\x00b"),
        ("\u2028\U0001f600é", "\u2028\U0001f600é"),
        ("x" * 2_000_000, "x" * 2_000_000),
    ],
    ids=["lone surrogate", "surrogate pair", "NUL", "non-ASCII", "2 MB"],
)
async def test_any_str_can_be_a_prompt(
    openai_server: OpenAIServer, sent: str, received: str
) -> None:
    response = await ask(OpenAILM("m", base_url=openai_server.url), sent)
    assert response.text == f"answer to: {received}"


async def test_five_identical_prompts_are_five_requests(openai_server: OpenAIServer) -> None:
    lm = OpenAILM("m", base_url=openai_server.url)
    await asyncio.gather(*(lm.complete(prompt("same")) for _ in range(5)))
    await lm.close()
    assert [entry.prompt for entry in openai_server.log()] == ["same"] * 5


# Keys and addresses


def test_a_missing_key_is_named_before_any_request() -> None:
    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        OpenAILM("gpt-5")


@pytest.mark.parametrize("key", ["sk two words", "schlüssel", "a\x00b"])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ModelError) as caught:
        OpenAILM("gpt-5", api_key=key)
    assert "api_key" in str(caught.value)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["localhost:11434/v1", "ftp://x/v1", "http://", "http://x:port/v1", "u:pw@host"]
)
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ModelError, match="http://localhost:11434/v1") as caught:
        OpenAILM("m", base_url=url)
    assert "pw" not in str(caught.value)


def test_the_key_is_not_in_the_repr() -> None:
    lm = OpenAILM("gpt-5", api_key=KEY)
    assert repr(lm) == "OpenAILM('gpt-5', base_url='https://api.openai.com/v1')"
    assert isinstance(lm, LM)
    assert lm.name == "openai/gpt-5"


async def test_the_key_is_not_in_the_logs(
    openai_server: OpenAIServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await ask(OpenAILM("m", base_url=openai_server.url, api_key=KEY))
    assert KEY not in caplog.text


@pytest.mark.parametrize("quoted", [KEY, f"{KEY[:8]}*****{KEY[-4:]}", f"{KEY[:7]}...{KEY[-4:]}"])
async def test_a_provider_that_quotes_the_key_is_scrubbed(
    openai_server: OpenAIServer, quoted: str
) -> None:
    body = {"error": {"message": f"Incorrect API key provided: {quoted}. Look it up."}}
    openai_server.script(Rule(status=401, body=msgspec.json.encode(body).decode()))
    error = await failure(OpenAILM("m", base_url=openai_server.url, api_key=KEY))
    assert KEY[:7] not in str(error)
    assert "[key]" in str(error)


async def test_a_made_up_key_is_scrubbed_as_a_word_and_the_address_stays(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(status=400, body='{"message": "key v1 is bad, use v12"}'))
    error = await failure(OpenAILM("m", base_url=openai_server.url, api_key="v1"))
    assert str(error).endswith("key [key] is bad, use v12")
    assert openai_server.url in str(error)


async def test_a_key_in_the_query_of_the_address_is_never_shown(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(status=400, body=msgspec.json.encode({"message": KEY}).decode()))
    lm = OpenAILM("m", base_url=f"{openai_server.url}?key={KEY}")
    error = await failure(lm)
    assert str(error).endswith(": [key]")
    assert KEY not in repr(lm)


async def test_a_key_quoted_in_a_body_that_is_no_json_is_scrubbed(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(body=f"<p>{KEY}</p>"))
    error = await failure(OpenAILM("m", base_url=openai_server.url, api_key=KEY))
    assert "[key]" in str(error)


# What comes back


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        (Rule(content=None), None, "stop"),
        (Rule(content=""), "", "stop"),
        (Rule(content=None, finish_reason="length"), None, "length"),
        (Rule(content="cut", finish_reason="length"), "cut", "length"),
        (Rule(content="x", finish_reason=None), "x", None),
        (Rule(content=None, message={"refusal": "I will not."}), "I will not.", "refusal"),
        (Rule(content="yes", message={"refusal": None}), "yes", "stop"),
        (
            Rule(content=[{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]),
            "ab",
            "stop",
        ),
        (Rule(content=[]), None, "stop"),
        (Rule(content={"odd": 1}), None, "stop"),
        (Rule(content=None, message={"reasoning_content": "thinking"}), None, "stop"),
    ],
    ids=lambda value: None if isinstance(value, Rule) else repr(value),
)
async def test_content_null_empty_refused_and_in_parts_are_told_apart(
    openai_server: OpenAIServer, rule: Rule, text: str | None, reason: str | None
) -> None:
    openai_server.script(rule)
    response = await ask(OpenAILM("m", base_url=openai_server.url))
    assert (response.text, response.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, Usage(complete=False)),
        ({}, Usage(complete=False)),
        ("many", Usage(complete=False)),
        ({"prompt_tokens": 5}, Usage(5, None, complete=False)),
        ({"prompt_tokens": -1, "completion_tokens": "3"}, Usage(complete=False)),
        ({"prompt_tokens": 5, "completion_tokens": 0, "cost": 0.25}, Usage(5, 0, 0.25)),
        ({"prompt_tokens": 5, "completion_tokens": 1, "cost": "free"}, Usage(5, 1)),
        ({"prompt_tokens": True, "completion_tokens": 1}, Usage(None, 1, complete=False)),
    ],
)
async def test_usage_that_is_missing_or_odd_is_a_floor_and_keeps_the_answer(
    openai_server: OpenAIServer, reported: object, usage: Usage
) -> None:
    openai_server.script(Rule(usage=reported))
    response = await ask(OpenAILM("m", base_url=openai_server.url))
    assert response.text == "answer to: hello"
    assert response.usage == usage


async def test_lone_surrogates_and_nan_in_an_answer_keep_it(openai_server: OpenAIServer) -> None:
    body = r'{"choices":[{"message":{"content":"a\ud800b"}}],"usage":{"cost":NaN}}'
    openai_server.script(Rule(body=body))
    response = await ask(OpenAILM("m", base_url=openai_server.url))
    assert response == Response("a\ufffdb", Usage(complete=False))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "(empty)"),
        ("<html>\n<h1>Welcome</h1>", "<html> <h1>Welcome</h1>"),
        ('"just text"', "no chat completion"),
        ("[1, 2]", "no chat completion"),
        ("{}", "holds no choices: {}"),
        ('{"choices": []}', "holds no choices"),
        ('{"choices": null}', "holds no choices"),
        ('{"choices": [{"text": "old style"}]}', "holds no message"),
        ('{"choices": [7]}', "no chat completion"),
        ('{"choices": [{"message": {"content": "x"}}', "no JSON"),
        ('{"usage": ' + "[" * 100_000, "no JSON"),
    ],
)
async def test_an_answer_of_another_shape_is_a_protocol_error_in_one_line(
    openai_server: OpenAIServer, body: str, says: str
) -> None:
    openai_server.script(Rule(body=body))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert error.type == "protocol"
    assert says in str(error)
    assert openai_server.url in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": 502, "message": "upstream is down"}},
        {"choices": [{"error": {"code": 502, "message": "upstream is down"}, "message": {}}]},
    ],
)
async def test_an_error_sent_with_status_200_is_an_error(
    openai_server: OpenAIServer, body: object
) -> None:
    openai_server.script(Rule(body=msgspec.json.encode(body).decode()))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert (error.type, error.status) == ("http", 502)
    assert "upstream is down" in str(error)


# Statuses


async def test_401_says_which_variable_to_check(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    openai_server.script(Rule(status=401, body="{}"))
    asks = await failure(OpenAILM("m", base_url=openai_server.url))
    assert "set the environment variable OPENAI_API_KEY" in str(asks)
    given = await failure(OpenAILM("m", base_url=openai_server.url, api_key=KEY))
    assert "the key in api_key" in str(given)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    found = await failure(OpenAILM("m", base_url=openai_server.url))
    assert "the key in OPENAI_API_KEY" in str(found)
    assert (found.type, found.status) == ("http", 401)


async def test_404_names_the_model_and_the_server(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(status=404, body='{"error": "model \\"m\\" not found, pull it"}'))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert f"no model 'm' at {openai_server.url}" in str(error)
    assert "pull it" in str(error)
    assert error.status == 404
    assert "404" in str(error)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"error": {"message": "Too\\n many", "type": "t"}}', "Too many"),
        ('{"message": "Too many"}', "Too many"),
        ('{"detail": [{"loc": ["body"], "msg": "Too many"}]}', "Too many"),
        ('[{"error": {"message": "Too many"}}]', "Too many"),
        ("<html><body>\r\n  Bad gateway </body>", "<html><body> Bad gateway </body>"),
        ("x" * 500, "x" * 79 + "…"),
        ("", "Server"),
        ('{"error": null}', "Server"),
        ('{"error": {"message": ["deep", {}]}}', "deep"),
    ],
)
@pytest.mark.parametrize("status", [429, 500, 502, 529])
async def test_other_statuses_give_the_status_and_the_providers_words_in_one_line(
    openai_server: OpenAIServer, status: int, body: str, says: str
) -> None:
    openai_server.script(Rule(status=status, body=body))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert (error.type, error.status, error.retry_after) == ("http", status, None)
    assert f"answered {status}" in str(error)
    assert says in str(error) or says == "Server"


async def test_a_retry_date_is_read_as_seconds_from_now(openai_server: OpenAIServer) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    openai_server.script(Rule(status=429, headers={"retry-after": date}, body="{}"))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert error.retry_after == pytest.approx(99, abs=3)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
async def test_retry_after_is_kept_for_who_retries_and_nothing_is_sent_again(
    openai_server: OpenAIServer, headers: dict[str, str], seconds: float | None
) -> None:
    openai_server.script(Rule(status=429, headers=headers, body="{}"))
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert error.retry_after == seconds
    assert len(openai_server.log()) == 1


async def test_a_redirect_is_an_error_that_names_the_target(openai_server: OpenAIServer) -> None:
    rule = Rule(status=307, headers={"location": "https://u:pw@elsewhere.example/v1?k=1"}, body="")
    openai_server.script(rule)
    error = await failure(OpenAILM("m", base_url=openai_server.url))
    assert "https://elsewhere.example/v1:" in str(error)
    assert len(openai_server.log()) == 1


# The way there


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """A server that reads once, sends these bytes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


async def test_no_server_asks_whether_it_runs() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    error = await failure(OpenAILM("m", base_url=url, api_key=KEY))
    assert error.type == "connect"
    assert str(error) == f"no server answers at {url}: is it running? (connection refused)"


async def test_an_unknown_host_is_a_connect_error_that_names_it() -> None:
    error = await failure(OpenAILM("m", base_url="http://no-such-host.invalid/v1"))
    assert error.type == "connect"
    assert "no-such-host.invalid" in str(error)
    assert "check base_url" in str(error)


async def test_https_to_a_server_without_tls_says_so() -> None:
    with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as host:
        error = await failure(OpenAILM("m", base_url=f"https://{host}/v1", api_key=KEY))
    assert error.type == "tls"
    assert "http or https?" in str(error)


async def test_a_server_that_speaks_no_http_is_a_protocol_error() -> None:
    with raw_server(b"SSH-2.0-OpenSSH_9\r\n\r\n") as host:
        error = await failure(OpenAILM("m", base_url=f"http://{host}/v1", api_key=KEY))
    assert error.type == "protocol"
    assert "did not answer in HTTP" in str(error)


@pytest.mark.parametrize("fail", ["drop", "cut"])
async def test_a_connection_that_breaks_is_named_and_the_next_call_works(
    openai_server: OpenAIServer, fail: str
) -> None:
    openai_server.script(Rule(match="bad", fail=fail))  # type: ignore[arg-type]
    lm = OpenAILM("m", base_url=openai_server.url, api_key=KEY)
    assert (await lm.complete(prompt("good"))).text == "answer to: good"
    with pytest.raises(LMError, match="closed the connection") as caught:
        await lm.complete(prompt("bad"))
    assert caught.value.type == "disconnected"
    assert (await lm.complete(prompt("good again"))).text == "answer to: good again"
    await lm.close()
    assert len(openai_server.log()) == 3


async def test_a_server_that_hangs_times_out_alone(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(match="hang", fail="hang"))
    lm = OpenAILM("m", base_url=openai_server.url, timeout=1.0)
    texts = ["hang", *(f"good {index}" for index in range(5))]
    answers = await asyncio.gather(
        *(lm.complete(prompt(text)) for text in texts), return_exceptions=True
    )
    await lm.close()
    assert isinstance(answers[0], LMError)
    assert answers[0].type == "timeout"
    assert "within 1 s" in str(answers[0])
    assert [a.text for a in answers[1:] if isinstance(a, Response)] == [
        f"answer to: {text}" for text in texts[1:]
    ]


async def test_a_cancelled_call_is_cancelled_and_leaves_the_client_usable(
    openai_server: OpenAIServer,
) -> None:
    openai_server.script(Rule(match="hang", fail="hang"))
    lm = OpenAILM("m", base_url=openai_server.url)
    call = asyncio.create_task(lm.complete(prompt("hang")))
    while not await asyncio.to_thread(openai_server.log):
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await ask(lm, "good")).text == "answer to: good"


async def test_loopback_bypasses_every_proxy(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    lm = OpenAILM("m", base_url=openai_server.url.replace("127.0.0.1", "localhost"))
    assert (await ask(lm)).text == "answer to: hello"


@pytest.mark.parametrize("proxy", ["socks5h://u:pw@127.0.0.1:9", "nonsense://127.0.0.1:9"])
async def test_a_proxy_that_cannot_be_used_fails_only_what_needs_it(
    openai_server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert (await ask(OpenAILM("m", base_url=openai_server.url))).text == "answer to: hello"
    error = await failure(OpenAILM("m", base_url="http://models.example/v1"))
    assert error.type == "connect"
    assert "NO_PROXY" in str(error) or "no server answers" in str(error)
    assert "pw" not in str(error)


async def test_an_http_proxy_is_used_for_other_hosts_with_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = b'{"choices":[{"message":{"content":"through the proxy"}}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with raw_server(head + body) as host:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:pw@{host}")
        response = await ask(OpenAILM("m", base_url="http://models.example/v1"))
    assert response.text == "through the proxy"


async def test_a_proxy_that_does_not_answer_is_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://me:pw@127.0.0.1:{free_port()}")
    error = await failure(OpenAILM("m", base_url="http://models.example/v1"))
    assert error.type == "connect"
    assert "through the proxy" in str(error)
    assert "pw" not in str(error)


def test_no_proxy_names_hosts_that_are_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("NO_PROXY", "in.example")
    assert proxy_of("https", "out.example") == "http://proxy:3128"
    assert proxy_of("https", "models.in.example") is None
    assert proxy_of("http", "out.example") is None


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("0.0.0.0", True),
        ("[::1]", True),
        ("localhost.example.com", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_loopback_is_recognised(host: str, local: bool) -> None:
    assert is_loopback(host) is local


# Connections


async def test_150_calls_at_once_never_wait_for_a_connection(openai_server: OpenAIServer) -> None:
    openai_server.script(Rule(delay=1.0))
    lm = OpenAILM("m", base_url=openai_server.url)
    await asyncio.gather(*(lm.complete(prompt("x")) for _ in range(150)))
    await lm.close()
    log = openai_server.log()
    # a pool of 100 would hold the rest back until the first answers are out
    first_answer = min(entry.answered for entry in log if entry.answered is not None)
    assert max(entry.received for entry in log) < first_answer


async def test_models_share_kept_connections_over_batches(openai_server: OpenAIServer) -> None:
    root = OpenAILM("root", base_url=openai_server.url)
    sub = OpenAILM("sub", base_url=openai_server.url)
    for _ in range(3):
        await root.complete(prompt("x"))
        await asyncio.gather(*(sub.complete(prompt("x")) for _ in range(4)))
    await root.close()
    assert (await sub.complete(prompt("x"))).text == "answer to: x"
    await sub.close()
    log = openai_server.log()
    assert len(log) == 16
    assert len({entry.port for entry in log}) <= 4


def test_a_model_works_on_one_loop_after_another(openai_server: OpenAIServer) -> None:
    lm = OpenAILM("m", base_url=openai_server.url)

    async def batch() -> list[str | None]:
        answers = await asyncio.gather(*(lm.complete(prompt(f"#{i}")) for i in range(16)))
        await lm.close()
        return [answer.text for answer in answers]

    for _ in range(3):
        assert asyncio.run(batch()) == [f"answer to: #{i}" for i in range(16)]


async def test_a_client_of_ones_own_is_used_and_closed(openai_server: OpenAIServer) -> None:
    import httpx

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"choices": [{"message": {"content": "mine"}}]})

    clients: list[httpx.AsyncClient] = []

    def make() -> httpx.AsyncClient:
        clients.append(httpx.AsyncClient(transport=httpx.MockTransport(answer)))
        return clients[-1]

    response = await ask(OpenAILM("m", base_url=openai_server.url, client=make))
    assert response.text == "mine"
    assert [client.is_closed for client in clients] == [True]


def test_http_libraries_are_loaded_by_the_first_call_not_by_import() -> None:
    code = (
        "import sys; from rlm_notebook.lm.lookup import get_lm\n"
        "get_lm('openai/m', base_url='http://localhost:9/v1')\n"
        "print(sorted({'httpx', 'aiohttp', 'httpx_aiohttp'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
