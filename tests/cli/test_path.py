import json

from command import called

from localspec.paths import Paths


def test_json_and_lines(tmp_path):
    paths = Paths(tmp_path)
    folders = {f"{name}_dir": str(tmp_path / name) for name in ("config", "data", "state", "cache")}
    files = ["database", "choice", "former_names", "copied", "drafters", "answers", "pulled", "imports"]
    files += ["packed", "tokenizers", "kernels", "last_notice", "logs", "socket"]
    named = {"config": paths.config_file, "models": paths.user_models_file, "key": paths.serving_key}
    wanted = folders | {name: str(place) for name, place in named.items()}
    wanted |= {name: str(getattr(paths, name)) for name in files}
    assert json.loads(called(tmp_path, "path", "--json").stdout) == wanted
    lines = called(tmp_path, "path").stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["config_dir", "data_dir", "state_dir", "cache_dir"]
    assert dict(line.split(maxsplit=1) for line in lines) == wanted


def test_works_where_the_settings_are_broken(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("= broken")
    assert called(tmp_path, "path", LOCALSPEC_NONSENSE="1").returncode == 0
