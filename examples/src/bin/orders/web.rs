//! Routes and responses.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use tenure::axum::{LockLayer, Locked, OwnerLayer, ProblemLayer};

use crate::shop::{AppError, Order, Shop};

type Answer = Result<Json<Order>, AppError>;

#[derive(Deserialize)]
struct NewOrder {
    cents: u64,
}

pub fn routes(shop: Shop, metrics: PrometheusHandle) -> Result<Router, tenure::Error> {
    // The same key as in `shop.rs`, so that cancelling and paying exclude each other.
    let one_at_a_time = LockLayer::path(&shop.locker, "order:{order_id}")?;
    Ok(Router::new()
        .route("/orders/{order_id}", get(find).put(place))
        .route("/orders/{order_id}/pay", post(pay))
        .route("/orders/{order_id}/cancel", post(cancel).layer(one_at_a_time))
        .with_state(Arc::new(shop))
        .route("/metrics", get(async move || metrics.render()))
        .layer(OwnerLayer)
        .layer(ProblemLayer::new()))
}

async fn find(State(shop): State<Arc<Shop>>, Path(id): Path<String>) -> Answer {
    shop.find(&id).await.map(Json)
}

async fn place(
    State(shop): State<Arc<Shop>>,
    Path(id): Path<String>,
    Json(new): Json<NewOrder>,
) -> Answer {
    shop.place(&id, new.cents).await.map(Json)
}

async fn pay(State(shop): State<Arc<Shop>>, Path(id): Path<String>) -> Answer {
    shop.pay(&id).await.map(Json)
}

async fn cancel(State(shop): State<Arc<Shop>>, Path(id): Path<String>, held: Locked) -> Answer {
    shop.cancel(&id, held.fence()).await.map(Json)
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        match self {
            AppError::Lock(error) => tenure::axum::problem(&error),
            AppError::NoSuchOrder => (StatusCode::NOT_FOUND, "no such order").into_response(),
            // Not 409, which means that a retry may help.
            AppError::Is(state) => {
                (StatusCode::UNPROCESSABLE_ENTITY, format!("the order is {state:?}"))
                    .into_response()
            }
            AppError::Bank(why) => (StatusCode::BAD_GATEWAY, why).into_response(),
            AppError::Ledger(why) => {
                eprintln!("ledger: {why}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
