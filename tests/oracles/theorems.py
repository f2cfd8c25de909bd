"""The theorems of the five papers, each written out literally with its paper's own letters.

eta_l is the local rate and eta the server's (gamma in FedCOMGATE, eta_s in FedAMD). Each function returns the limit of the
local rate and the bound. Where a statement and its proof differ, the docstring says which one this is.
"""

from __future__ import annotations

from math import exp, inf, sqrt


def fed_ef_4_4(L, K, n, sigma, sigma_g, Delta, q, eta, eta_l, T):
    """Fed-EF, proof of Theorem 4.4 (F.5)."""
    limit = 1 / (8 * K * L * max(1, 8 * (1 + q**2) * eta))
    drift = sigma**2 + 6 * K * sigma_g**2
    bound = (
        Delta / (eta * eta_l * T * K) + 4 * eta * eta_l * (1 + q**2) * L / n * sigma**2 + 64 * q**2 / (K * n) * sigma**2
    )
    bound += 20 * eta * eta_l**3 * (1 + q**2) * K**2 * L**3 * drift + (320 * q**2 + 3) * eta_l**2 * K * L**2 * drift
    return limit, bound


def fed_ef_4_6(L, K, n, sigma, sigma_g, Delta, q, eta, eta_l, T):
    """Fed-EF, Theorem 4.6."""
    C1 = 2 + 4 * q**2 / (1 - q**2) ** 2
    limit = 1 / (2 * K * L * max(4, eta * (C1 + 1)))
    bound = Delta / (eta * eta_l * T * K) + 2 * eta * eta_l * C1 * L / n * sigma**2
    return limit, bound + 10 * eta * eta_l**3 * C1 * K**2 * L**3 * (sigma**2 + 6 * K * sigma_g**2)


def fed_ef_4_8(L, K, n, sigma, sigma_g, Delta, q, eta, eta_l, T, beta1, eps, G, d):
    """Fed-EF, Theorem 4.8. The proof divides its last sum by eta eta_l K / (16 sqrt(eps)), the statement by eta eta_l K."""
    C1 = beta1 / (1 - beta1) + 2 * q / (1 - q**2)
    inner = [1 / sqrt(eps), 2 * (1 - q**2) * L / ((1 + q**2) ** 1.5 * G)]
    inner += [1 / (max(16, 32 * C1**2) * eta), 1 / (3 * eta ** (1 / 3))]
    limit = sqrt(eps) / (8 * K * L) * min(inner)
    bound = Delta / (eta * eta_l * T * K) + eta * eta_l * L * (6 + 4 * C1**2) / (n * eps) * sigma**2
    bound += 2 * C1 * G**2 * d / (T * sqrt(eps)) + 3 * eta * eta_l * C1**2 * L * K * G**2 * d / (T * eps)
    drift = 5 * eta_l**2 * K * L**2 / (2 * sqrt(eps)) + eta * eta_l**3 * (30 + 20 * C1**2) * K**2 * L**3 / eps
    return limit, 16 * sqrt(eps) * (bound + drift * (sigma**2 + 6 * K * sigma_g**2))


def fed_ef_4_10(L, K, n, m, sigma, sigma_g, Delta, q, eta, eta_l, T):
    """Fed-EF, Theorem 4.10; m of n clients take part. Term II has the factor L, which its bound in the proof drops."""
    C1, C = q**2 / (1 - q**2) ** 3, (n - m) / (n - 1)
    inner = [1 / 8, 1 / (32 * max(C1, 1) * eta)]
    if m < n:
        inner.append(m / (500 * C * eta))
    if m < n and q:
        inner.append(m**2 / (53760 * (n - m) * C1 * eta))
    if q:
        inner.append((1 - q**2) ** 2 * m**2 / (32 * q**2 * n**2 * eta))
    drift = 5 * eta_l**2 * K * L**2 / 2 + 5 * eta * eta_l * C * L / m + 560 * eta * eta_l * C1 * (n - m) * L / m**2
    bound = Delta / (eta * eta_l * T * K) + (eta * eta_l * L / m + 8 * eta * eta_l * C1 * L * n / m**2) * sigma**2
    return min(inner) / (K * L), bound + drift * (sigma**2 + 6 * K * sigma_g**2)


def fedamd_4_4(L, K, M, sigma, gap, tau, L_sigma, b_small, b, eta, eta_l, T):
    """FedAMD, Theorem D.2, Eq. (47)."""
    limit = min(
        1 / (6 * sqrt(6) * K * L * tau) / eta, 1 / (6 * sqrt(2) * K * L), sqrt(b_small / K) / (2 * sqrt(3) * L_sigma)
    )
    noise = sigma**2 / (M * b) if b < inf else 0
    return limit, 4 * gap / (eta * eta_l * K * T) + 16 * eta_l * L * K * (2 * eta + 3 * eta_l * K * L) * noise


def fedamd_4_6(L, K, M, A, sigma, gap, tau, L_sigma, b_small, b, eta, eta_l, T):
    """FedAMD, Theorem D.3, Eq. (111)."""
    product = 1 / (K * L) / (1 + 2 * M * tau / A)
    limit = min(product / eta, 1 / (2 * sqrt(6) * K * L), sqrt(b_small / K) / (4 * sqrt(3) * L_sigma))
    noise = sigma**2 / (M * b) if b < inf else 0
    return limit, 4 * gap / (eta * eta_l * K * (T - T // tau)) + 8 * noise


def fedamd_4_8(L, K, M, A, sigma, gap, p, L_sigma, b_small, b, eta, eta_l, T):
    """FedAMD, Theorem E.4: Eq. (161) divided by eta eta_l K T (1 - p^A) / 4, which Eq. (162) does for one term only."""
    product = 1 / (K * L) / (1 + 2 * M / (A * p) * sqrt(1 - p**A))
    limit = min(product / eta, 1 / (2 * sqrt(6) * K * L), sqrt(b_small / K) / (4 * sqrt(3) * L_sigma))
    noise = sigma**2 / (M * b) if b < inf else 0
    return limit, 4 * gap / (eta * eta_l * K * T * (1 - p**A)) + 4 * 3 * noise


def fedamd_4_11(L, K, M, A, sigma, gap, p, mu, L_sigma, b_small, b, eta, eta_l, T):
    """FedAMD, Theorem E.5, Eq. (174)."""
    product = min(A * p / (M * K * mu * (1 - p**A)), 1 / (K * L * (1 + 16 * M / (mu * A * p) * L)))
    limit = min(product / eta, 1 / (2 * sqrt(6) * K * L), sqrt(b_small / K) / (4 * sqrt(3) * L_sigma))
    noise = sigma**2 / (M * b) if b < inf else 0
    return limit, (1 - mu * eta * eta_l * K / 2 * (1 - p**A)) ** T * gap + 6 / mu * noise


def fedcams_4_4(L, K, m, sigma, sigma_g, gap, beta1, beta2, eps, G, d, eta, eta_l, T):
    """FedCAMS, Theorem 4.4."""
    C1 = beta1 / (1 - beta1)
    bracket = (3 + C1**2) * eta * L + 2 * sqrt(2 * (1 - beta2)) * G
    limit = min(1 / (8 * K * L), eps / (K * sqrt(beta2 * K**2 * G**2 + eps) * bracket))
    Psi = C1 * G**2 * d / sqrt(eps) + 2 * C1**2 * eta * eta_l * K * L * G**2 * d / eps
    Phi = 5 * eta_l**2 * K * L**2 / sqrt(2 * eps) * (sigma**2 + 6 * K * sigma_g**2)
    Phi += bracket * eta_l / (2 * m * eps) * sigma**2
    return limit, 4 * sqrt(beta2 * eta_l**2 * K**2 * G**2 + eps) * (gap / (eta * eta_l * K * T) + Psi / T + Phi)


def fedcams_4_9(L, K, m, n, sigma, sigma_g, gap, beta1, beta2, eps, G, d, eta, eta_l, T, limit_factor=24):
    """FedCAMS, Theorem 4.9, with Phi as in (A.32)."""
    C1 = beta1 / (1 - beta1)
    bracket = (3 + C1**2) * eta * L + 2 * sqrt(2 * (1 - beta2)) * G
    second = n * (m - 1) * eps / (limit_factor * m * (n - 1) * K * sqrt(beta2 * K**2 * G**2 + eps) * bracket)
    Psi = C1 * G**2 * d / sqrt(eps) + 2 * C1**2 * eta * eta_l * K * L * G**2 * d / eps
    drift = sigma**2 + 6 * K * sigma_g**2
    Phi = 5 * eta_l**2 * K * L**2 / sqrt(2 * eps) * drift + bracket * eta_l / (2 * n * eps) * sigma**2
    sampled = 15 * K**2 * L**2 * eta_l**2 * drift + 3 * K * sigma_g**2
    Phi += bracket * eta_l * (m - n) / (2 * n * (m - 1) * eps) * sampled
    bound = 8 * sqrt(beta2 * eta_l**2 * K**2 * G**2 + eps) * (gap / (eta * eta_l * K * T) + Psi / T + Phi)
    return min(1 / (8 * K * L), second), bound


def fedcams_4_18(L, K, m, sigma, sigma_g, gap, beta1, beta2, eps, G, d, q, gamma, eta, eta_l, T, C1=None, C2=None):
    """FedCAMS, Theorem 4.18. FedBNLACA's Theorem A.1 (D.15) is the same with other C1 and C2."""
    C1 = beta1 / (1 - beta1) + 2 * q / (1 - q**2) if C1 is None else C1
    C2 = beta1**2 / (1 - beta1) ** 2 + 4 * (q + gamma) ** 2 / (1 - q**2) ** 2 if C2 is None else C2
    bracket = (3 + 2 * C2) * eta * L + 2 * sqrt(2 * (1 - beta2)) * G
    root = sqrt(4 * beta2 * (1 + q**2) ** 3 * (1 - q**2) ** -2 * K**2 * G**2 + eps)
    Psi = C1 * G**2 * d / sqrt(eps) + 2 * C1**2 * eta * eta_l * K * L * G**2 * d / eps
    Phi = 5 * eta_l**2 * K * L**2 / sqrt(2 * eps) * (sigma**2 + 6 * K * sigma_g**2)
    Phi += bracket * eta_l / (2 * m * eps) * sigma**2
    front = 4 * sqrt(beta2 * 4 * (1 + q**2) ** 3 / (1 - q**2) ** 2 * eta_l**2 * K**2 * G**2 + eps)
    limit = min(1 / (8 * K * L), eps / (K * root * bracket))
    return limit, front * (gap / (eta * eta_l * K * T) + Psi / T + Phi)


def fedcams_b_2(L, K, m, n, sigma, sigma_g, gap, beta1, beta2, eps, G, d, q, eta, eta_l, T, C1=None):
    """FedCAMS, Theorem B.2. The bound of FedBNLACA's Theorem A.3 is the same with another C1."""
    C1 = beta1 / (1 - beta1) + 2 * q / (1 - q**2) if C1 is None else C1
    bracket = eta * L + sqrt(2 * (1 - beta2)) * G
    root = sqrt(4 * beta2 * (1 + q**2) ** 3 * (1 - q**2) ** -2 * K**2 * G**2 + eps)
    Psi = C1 * G**2 * d / sqrt(eps) + 2 * C1**2 * eta * eta_l * K * L * G**2 * d / eps
    drift = sigma**2 + 6 * K * sigma_g**2
    Phi = C1 * eta * eta_l * K * L * G**2 / eps + 5 * eta_l**2 * K * L**2 / sqrt(2 * eps) * drift
    Phi += bracket * eta_l / (n * eps) * sigma**2
    sampled = 15 * K**2 * L**2 * eta_l**2 * drift + 3 * K * sigma_g**2
    Phi += bracket * eta_l * (m - n) / (n * (m - 1) * eps) * sampled
    front = 8 * sqrt(4 * beta2 * (1 + q**2) ** 3 / (1 - q**2) ** 2 * eta_l**2 * K**2 * G**2 + eps)
    limit = min(1 / (8 * K * L), n * (m - 1) * eps / (48 * m * (n - 1)) / (K * root * bracket))
    return limit, front * (gap / (eta * eta_l * K * T) + Psi / T + Phi)


def fedcom_d_4(L, tau, m, sigma, gap, q, gamma, eta, R):
    """FedCOM, Theorem D.4, Eq. (22), with the limit of Eq. (32)."""
    limit = (sqrt((q / m + 1) ** 2 * gamma**2 + 4) - (q / m + 1) * gamma) / (2 * L * tau)
    bound = (
        2 * gap / (eta * gamma * tau * R) + L * eta * gamma * (q + 1) / m * sigma**2 + L**2 * eta**2 * tau * sigma**2
    )
    return limit, bound


def fedcom_d_7(L, tau, m, sigma, gap, q, mu, gamma, eta, R):
    """FedCOM, Theorem D.7, Eq. (38)."""
    limit, _ = fedcom_d_4(L, tau, m, sigma, gap, q, gamma, eta, R)
    inner = 0.5 * L**2 * tau * eta**2 * sigma**2 + (1 + q) * gamma * eta * L * sigma**2 / (2 * m)
    return limit, (1 - eta * gamma * mu * tau) ** R * gap + inner / mu


def fedcom_d_9(L, tau, m, sigma, gap, q, norm, gamma, R):
    """FedCOM, Theorem D.9, Eq. (45): the rate, and the bound with it."""
    eta = 1 / (2 * L * gamma * tau * (1 + q / m))
    bound = exp(-R / (2 * L * (1 + q / m) * sqrt(m * tau))) * gap
    bound += sqrt(m) * sigma**2 / (8 * sqrt(tau) * gamma**2 * (1 + q / m) ** 2)
    bound += (1 + q) * sigma**2 / (4 * (1 + q / m) * sqrt(m * tau))
    return eta, bound + norm**2 / (2 * sqrt(m * tau))


def fedcomgate_e_4(L, tau, m, sigma, gap, local_gaps, q, G_q, gamma, eta, R):
    """FedCOMGATE, Theorem E.4: both sides of Eq. (61), and Eq. (62) with L eta sigma^2 for the eta sigma^2 of (74)."""
    holds = 1 - 10 * eta**2 * (eta * gamma) ** 2 * (q + 1) * L**4 * tau**4 - L * eta * gamma * tau * (q + 1) >= 0
    holds = holds and 30 * eta**2 * L**2 * tau**2 <= 1 + 1e-12
    bound = (
        2 * gap / (tau * eta * gamma * R)
        + (q + 1) * gamma * L * eta * sigma**2 / m
        + 36 * eta**2 * L**2 * tau * sigma**2
    )
    bound += 10 * eta**2 * L**4 * tau**3 * (eta * gamma) ** 2 * (q + 1) * sigma**2 / m
    bound += 10 * eta**2 * L**4 * tau**2 * (eta * gamma) ** 2 * (q + 1) * G_q
    bound += 32 * eta * L**2 * tau / (m * R) * sum(local_gaps) + 16 * eta**3 * L**3 * tau**2 / R * sigma**2
    bound += 32 * eta**2 * L**3 * tau**2 / R * gap + gamma * eta * L / tau * G_q
    return holds, bound


def fedcomgate_e_6(L, tau, m, sigma, gap, squared_distances, q, G_q, mu, gamma, eta, R):
    """FedCOMGATE, Theorem E.6: both sides of Eq. (78), and Eq. (79) with the noise that Eq. (88) adds."""
    below = 1 - mu * tau * gamma * eta + 20 * mu * gamma * eta**3 * L**2 * tau**3
    holds = (
        1 - (q + 1) * L * eta * gamma * tau - 10 * (q + 1) * eta**2 * tau**4 * L**4 * (eta * gamma) ** 2 / below
        >= -1e-12
    )
    holds = holds and 30 * eta**2 * L**2 * tau**2 <= 1 + 1e-12
    inner = L**2 * 18 * eta**2 * tau * sigma**2 + 8 * L**4 * eta**2 * tau**2 / m * sum(squared_distances)
    inner += 16 * L**3 * tau**2 * eta**2 * gap + 8 * L**4 * eta**3 * tau**2 * sigma**2 / (mu * (1 - eta * L))
    inner += 5 * L**4 * eta**2 * tau**3 * (eta * gamma) ** 2 * (q + 1) * sigma**2 / m
    inner += 5 * L**2 * eta**2 * L**2 * tau**2 * (eta * gamma) ** 2 * (q + 1) * G_q
    inner += (q + 1) * eta * gamma * L / 2 * sigma**2 / m + L * eta * gamma * G_q / (2 * tau)
    return holds, (1 - mu * eta * gamma * tau / 3) ** R * gap + 3 / mu * inner


def fedcomgate_e_9(L, tau, m, sigma, gap, squared_distances, q, G_q, norm, gamma, R):
    """FedCOMGATE, Theorem E.9: the rate, and Eq. (91) with it; kappa is L / phi."""
    eta, kappa = 1 / (2 * L * gamma * tau * (1 + q)), L * sqrt(m * tau)
    bound = exp(-R / (6 * (1 + q) * L * sqrt(m * tau))) * gap + 13.5 * sqrt(m) * sigma**2 / (
        (q + 1) ** 2 * gamma**2 * sqrt(tau)
    )
    bound += 6 * sqrt(m * tau) * L**2 / (m * (q + 1) ** 2 * gamma**2) * sum(squared_distances)
    bound += 12 * L * sqrt(m * tau) / (gamma**2 * (q + 1) ** 2) * gap
    bound += 3 * sqrt(m * tau) * kappa * sigma**2 / ((q + 1) ** 2 * gamma**2 * ((q + 1) * gamma * tau - 0.5))
    bound += 15 * sigma**2 / (16 * (q + 1) ** 3 * gamma**2 * sqrt(m * tau))
    bound += 15 * G_q * sqrt(m) / (16 * (q + 1) ** 3 * tau**1.5 * gamma**2)
    bound += 3 * sigma**2 / (4 * sqrt(m * tau)) + 3 * sqrt(m) * G_q / (4 * (q + 1) * tau**1.5)
    return eta, bound + norm**2 / (2 * sqrt(m * tau))


def fedbnlaca_skipping(K, G, eps, L, eta, eta_l, beta1, beta2, threshold):
    """FedBNLACA, proofs of Theorems 4.1 and 4.3: what the last sum adds to FedAMS's, divided by eta eta_l K."""
    C1 = beta1 / (1 - beta1)
    bracket = 3 * eta**2 * L / 2 + C1**2 * eta**2 * L / 2 + sqrt(2 * (1 - beta2)) * eta * G
    added = bracket * 2 * K**2 * threshold**2 * eta_l**2 * G**2 / eps
    gradient, skipped = G, threshold * eta_l * K * G
    added += sqrt(2) * eta * gradient / sqrt(eps) * skipped
    return added / (eta * eta_l * K)


def fedbnlaca_constants(beta1, q, gamma, lam, threshold, share=1.0):
    """FedBNLACA, C1 and C2 of Theorems A.1 and A.3; `share` is m / n."""
    C1 = beta1 / (1 - beta1) + share * sqrt(12 * q**2 / (1 - q**2) ** 2 + (1 - q**2) ** 2 * threshold**2 / q**2)
    return C1, beta1**2 / (1 - beta1) ** 2 + 4 * (q + gamma + lam * threshold) ** 2 / (1 - q**2) ** 2


def fedbnlaca_downlink(L, K, G, H, d, eps, eta, eta_l, beta1, gamma, threshold, C1):
    """FedBNLACA, T_5 and T_6 of the proof of Theorem 4.5 from the lines before (E.12) and (E.14), divided by eta eta_l K.

    The error of the clients' model is at most (gamma + C/(alpha m)) H, and its square 2 (gamma^2 + C^2/(alpha m)^2) H^2.
    """
    scale = eta / ((1 - beta1) * sqrt(eps))
    error, squared = scale * (gamma + threshold) * H, scale**2 * 2 * (gamma**2 + threshold**2) * H**2
    difference = d / sqrt(eps)
    T5 = G * error + L * eta * eta_l * K * G / sqrt(eps) * error + L * eta * eta_l * C1 * K * G * difference * error
    T5 += L * squared + L * H * error
    T6 = L * squared * (threshold**2 + 1)
    return (T5 + T6) / (eta * eta_l * K)
