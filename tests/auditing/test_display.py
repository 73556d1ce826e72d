"""An audit in a notebook: findings, and a picture of what was measured."""

import dataclasses

import hpgmn
from hpgmn.auditing.graph_audit import Finding
from hpgmn.base.errors import Remedy


def test_an_audit_shows_its_findings_and_classes(small_graph):
    audit = hpgmn.audit(small_graph, training=False)
    evil = Finding("warning", "topic", "<b>bold</b>", Remedy("Mend it"))
    shown = dataclasses.replace(audit, findings=(*audit.findings, evil))._repr_html_()
    assert audit.findings
    assert "<td>&lt;b&gt;bold&lt;/b&gt;</td><td>Mend it.</td>" in shown
    assert shown.count("<rect") == small_graph.num_classes
    assert "<td>18</td>" in shown


def test_a_trained_audit_shows_whether_the_graph_helps(small_graph):
    audit = hpgmn.audit(small_graph)
    assert audit.usefulness is not None
    shown = audit._repr_html_()
    for part in audit.usefulness.contributions:
        assert f">{part.name}</text>" in shown
        assert f">{part.score:.1%}</text>" in shown
