"""An agent: a model chooses tools until it has an answer. Every call is a step, so none that has
returned is made again, whatever dies meanwhile. While a person is asked, no worker is held."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.request import Request, urlopen

import journeyman as jm

app = jm.App(lease=5)  # $JOURNEYMAN_URL, or the server on this machine
MAX_TURNS = 20
Message = dict[str, Any]


@app.task(retries=5)
def run_agent(goal: str, model: str = "scripted") -> str:
    messages: list[Message] = [{"role": "user", "content": goal}]
    for _ in range(MAX_TURNS):
        reply = jm.step(MODELS[model], messages, key="model", retries=3)
        messages.append(reply)
        calls = reply.get("tool_calls") or []
        if not calls:
            return str(reply["content"])
        for call in calls:
            outcome = use_tool(call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": outcome})
    raise jm.GiveUp(f"no answer in {MAX_TURNS} turns")


def use_tool(call: dict[str, str]) -> str:
    """What the model is shown: the tool's outcome, or what is wrong with the call."""
    try:
        tool, arguments = TOOLS[call["name"]], json.loads(call["arguments"])
        inspect.signature(tool).bind(**arguments)
    except (KeyError, TypeError, ValueError) as error:
        return f"not a valid call: {error!r}"
    if tool is ask_person:  # it consists of steps
        return ask_person(**arguments)
    return jm.step(lambda: tool(**arguments), key=call["name"])


# -- tools -----------------------------------------------------------------------------------------


def note(line: str) -> None:
    """What has been done in the world, for this example: a line of a file."""
    with open("calls.txt", "a", encoding="utf-8") as file:
        print(line, file=file)


def find_order(order: int) -> str:
    """Look up what was paid for an order, in cents."""
    note(f"find_order {order}")
    return "9900"


def refund(order: int, cents: int) -> str:
    """Pay this much of an order back."""
    note(f"refund {order} {cents}")
    return f"refunded {cents}"


def ask_person(question: str) -> str:
    """Ask a person, and wait up to a week for the answer."""
    event = f"answer:{jm.uuid()}"  # the same in every attempt
    jm.job().log(f"{question} (journeyman emit {event} '\"yes\"')")
    return str(jm.wait_for(event, timeout=timedelta(days=7), default="no answer"))


TOOLS: dict[str, Callable[..., str]] = {
    "find_order": find_order,
    "refund": refund,
    "ask_person": ask_person,
}


# -- models ----------------------------------------------------------------------------------------


def scripted(messages: list[Message]) -> Message:
    """Stands in for a model: looks an order up, asks whether to refund it, and does."""
    note("model")
    outcomes = [message["content"] for message in messages if message["role"] == "tool"]
    order = int(messages[0]["content"].split()[-1])
    match outcomes:
        case []:
            return _call("find_order", order=order)
        case [cents]:
            return _call("ask_person", question=f"Refund {cents} cents of order {order}?")
        case [cents, "yes"]:
            return _call("refund", order=order, cents=int(cents))
        case [_, "yes", outcome]:
            return {"role": "assistant", "content": f"order {order}: {outcome}"}
    return {"role": "assistant", "content": f"order {order} is not refunded"}


def _call(tool: str, **arguments: object) -> Message:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{tool}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def http(messages: list[Message]) -> Message:
    """Ask a server that speaks chat completions."""
    body = {
        "model": os.environ.get("AGENT_MODEL", ""),
        "messages": messages,
        "tools": [_described(name, tool) for name, tool in TOOLS.items()],
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("AGENT_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    request = Request(os.environ["AGENT_URL"], json.dumps(body).encode(), headers)
    with urlopen(request, timeout=120) as reply:
        message: Message = json.load(reply)["choices"][0]["message"]
    return message


def _described(name: str, tool: Callable[..., str]) -> dict[str, Any]:
    kinds = {"int": "integer", "str": "string"}
    wanted = [
        parameter
        for parameter in inspect.signature(tool).parameters.values()
        if parameter.default is inspect.Parameter.empty
    ]
    parameters = {
        "type": "object",
        "properties": {each.name: {"type": kinds[each.annotation]} for each in wanted},
        "required": [each.name for each in wanted],
    }
    function = {"name": name, "description": inspect.getdoc(tool), "parameters": parameters}
    return {"type": "function", "function": function}


MODELS: dict[str, Callable[[list[Message]], Message]] = {"scripted": scripted, "http": http}
