use crate::problem::Problem;
use crate::schema::DistributedStrategy;
impl DistributedStrategy {
    pub fn check(&self) -> Vec<Problem> {
        Vec::new()
    }
}
