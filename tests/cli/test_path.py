import json

from command import called

from localspec.paths import Paths


def test_json_and_lines(tmp_path):
    paths = Paths(tmp_path)
    wanted = {
        "config": str(paths.config_file),
        "models": str(paths.user_models_file),
        "database": str(paths.database),
        "copied": str(paths.copied),
        "drafters": str(paths.drafters),
        "pulled": str(paths.pulled),
        "packed": str(paths.packed),
        "logs": str(paths.logs),
        "socket": str(paths.socket),
        "key": str(paths.serving_key),
    }
    assert json.loads(called(tmp_path, "path", "--json").stdout) == wanted
    assert dict(line.split(maxsplit=1) for line in called(tmp_path, "path").stdout.splitlines()) == wanted


def test_works_where_the_settings_are_broken(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("= broken")
    assert called(tmp_path, "path", LOCALSPEC_NONSENSE="1").returncode == 0
