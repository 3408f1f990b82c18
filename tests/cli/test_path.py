import json

from command import called

from localspec.paths import Paths


def test_json_and_lines(tmp_path):
    paths = Paths(tmp_path)
    wanted = {
        "config_dir": str(tmp_path / "config"),
        "data_dir": str(tmp_path / "data"),
        "state_dir": str(tmp_path / "state"),
        "cache_dir": str(tmp_path / "cache"),
        "config": str(paths.config_file),
        "models": str(paths.user_models_file),
        "database": str(paths.database),
        "copied": str(paths.copied),
        "drafters": str(paths.drafters),
        "pulled": str(paths.pulled),
        "imports": str(paths.imports),
        "packed": str(paths.packed),
        "tokenizers": str(paths.tokenizers),
        "kernels": str(paths.kernels),
        "logs": str(paths.logs),
        "socket": str(paths.socket),
        "key": str(paths.serving_key),
    }
    assert json.loads(called(tmp_path, "path", "--json").stdout) == wanted
    lines = called(tmp_path, "path").stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["config_dir", "data_dir", "state_dir", "cache_dir"]
    assert dict(line.split(maxsplit=1) for line in lines) == wanted


def test_works_where_the_settings_are_broken(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("= broken")
    assert called(tmp_path, "path", LOCALSPEC_NONSENSE="1").returncode == 0
