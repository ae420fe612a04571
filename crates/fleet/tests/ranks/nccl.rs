//! Jobs whose collectives use NCCL, tested on the NCCL double.

use crate::launch::run_with;

/// Returns the parameters that each rank printed.
fn trained(job: &str, environment: &[(&str, &str)]) -> Vec<Vec<f32>> {
    let parameters = |output: &std::process::Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let more = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{more}");
        let line = text.lines().find(|line| line.contains("parameters ")).expect("a line of them");
        let words = line.split("parameters ").nth(1).unwrap_or_default().split(' ');
        words.map(|bits| f32::from_bits(bits.parse().expect("bits"))).collect()
    };
    run_with(job, 2, "", environment).iter().map(parameters).collect()
}

#[test]
fn ranks_train_what_they_train_through_memory() {
    let library = fleet_testhost::nccl_double::double(env!("CARGO_TARGET_TMPDIR"));
    let library = library.to_str().expect("a path of text");
    let folder = crate::scratch("nccl");
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    let own = folder.to_str().expect("a path of text");
    for job in ["train", "train in rings"] {
        let expected = trained(job, &[]);
        let environment = [
            ("FLEET_NCCL", "1"),
            ("FLEET_NCCL_LIBRARY", library),
            ("LD_LIBRARY_PATH", library),
            ("FLEET_NCCL_DOUBLE_FOLDER", own),
        ];
        // The sum of two numbers does not depend on their order.
        assert_eq!(trained(job, &environment), expected, "{job}");
    }
    let none = [("FLEET_NCCL", "1"), ("FLEET_NCCL_LIBRARY", library), ("LD_LIBRARY_PATH", library)];
    let none =
        [&none[..], &[("FLEET_NCCL_DOUBLE_FAULT", "devices:1"), ("FLAGS_selected_gpus", "3")]];
    for output in run_with("train", 2, "", &none.concat()) {
        let text = crate::launch::stderr_of(&output);
        assert!(!output.status.success() && text.contains("requested GPU 3"), "{text}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder can go");
}
