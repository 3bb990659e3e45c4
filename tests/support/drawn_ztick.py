"""Records of the ztick format, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st

from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    JobRemoved,
    JobSet,
    Redis,
    RuleRemoved,
    RuleSet,
    Shell,
    Status,
    WorkQueueRunner,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
lists = st.lists(texts, max_size=4).map(tuple)
int64s = st.integers(-(2**63), 2**63 - 1)
runners = st.one_of(
    st.builds(Shell, texts),
    st.builds(Amqp, texts, texts, texts),
    st.builds(Direct, texts, lists),
    st.builds(Awf, texts, lists),
    st.builds(Http, texts, texts),
    st.builds(Redis, texts, texts, texts),
    st.builds(WorkQueueRunner, texts, lists),
    st.builds(FanOutRunner, texts),
)
records = st.one_of(
    st.builds(JobSet, texts, int64s, st.sampled_from(Status)),
    st.builds(RuleSet, texts, texts, runners),
    st.builds(JobRemoved, texts),
    st.builds(RuleRemoved, texts),
)
