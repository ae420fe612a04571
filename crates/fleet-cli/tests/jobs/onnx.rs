//! ONNX files of model folders: their inputs are columns. `python/tests/test_onnx_jobs.py` compares
//! their scores with those of `fleet predict`.

use super::*;

#[test]
fn inputs_are_columns() {
    let place = binary_job("onnx", SHORT);
    place.run("fleet job train job.toml");
    let said = place.run("fleet export --onnx model model.onnx");
    let expected = "inputs height, age, city, tags, user; outputs score; opset 18";
    assert!(said.contains(expected), "{said}");
    let said = place.fail("fleet export --onnx model old.onnx --opset 17");
    assert!(said.contains("a newer ONNX op set: expected at least 18, got 17"), "{said}");
    assert!(!place.0.join("old.onnx").exists());
    // The program alone has the inputs that features make.
    let said = place.run("fleet export --onnx model/program program.onnx");
    assert!(said.contains("numbers") && said.contains("opset 17"), "{said}");
}

#[test]
fn vectors_are_outputs() {
    let place = retrieval_job("onnx-vectors", "hidden = [16]");
    place.run("fleet job train job.toml");
    let said = place.run("fleet export --onnx model model.onnx");
    let expected = "inputs user, movie, genre; outputs score, user_vector, item_vector; opset 17";
    assert!(said.contains(expected), "{said}");
}
