"""Pictures: the same bytes for the same record, and what they must show is in them."""

from hpgmn_lab.bench.pictures import draw

PNG = b"\x89PNG"


def drawn(path):
    assert path.with_suffix(".png").read_bytes().startswith(PNG)
    return path.with_suffix(".svg").read_text(encoding="utf-8")


def test_growth_shows_every_stage_and_the_slope(tmp_path, growth_record):
    draw(growth_record, tmp_path / "growth")
    text = drawn(tmp_path / "growth")
    for word in ("estimator", "prediction", "whole run", "slope one", "peak memory"):
        assert word in text
    assert "GPU" not in text
    draw(growth_record, tmp_path / "again")
    assert drawn(tmp_path / "again") == text


def test_growth_on_a_gpu_shows_its_memory(tmp_path, growth_record):
    growth_record["device_kind"] = "cuda"
    growth_record["sizes"][1] = {"nodes": 1_000_000, "failed": "out of memory"}
    growth_record["sizes"][0]["device_peak_bytes"] = 2**28
    draw(growth_record, tmp_path / "growth")
    assert "GPU" in drawn(tmp_path / "growth")


def test_peers_shows_every_model_that_has_a_curve(tmp_path, peers_record):
    draw(peers_record, tmp_path / "peers")
    text = drawn(tmp_path / "peers")
    for word in ("hpgmn", "linkx", "PyG GCN", "seconds"):
        assert word in text
    assert "appnp" not in text


def test_peers_without_any_curve_is_still_drawn(tmp_path, peers_record):
    peers_record["models"] = {"hpgmn": {"failed": "out of memory"}}
    draw(peers_record, tmp_path / "peers")
    assert "seconds" in drawn(tmp_path / "peers")


def test_differences_show_every_pair_and_the_bar(tmp_path, forms_record, batches_record):
    draw(forms_record, tmp_path / "forms")
    text = drawn(tmp_path / "forms")
    for word in ("squirrel, topk", "squirrel, sketch", "minus dense", "bar, -0.5"):
        assert word in text
    batches_record["graphs"]["squirrel"]["splits"] = [0]  # one value: no interval
    for runs in batches_record["graphs"]["squirrel"]["runs"].values():
        runs["test_score"] = runs["test_score"][:1]
    draw(batches_record, tmp_path / "batches")
    text = drawn(tmp_path / "batches")
    assert "pubmed" in text
    assert "in batches minus all at once" in text


def test_some_records_have_no_picture(tmp_path, workers_record):
    assert not draw(workers_record, tmp_path / "workers")
    assert list(tmp_path.iterdir()) == []
